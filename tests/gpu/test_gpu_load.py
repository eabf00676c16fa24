# SPDX-License-Identifier: Apache-2.0
"""The load generator: what it counts as a step, when it stops, what it times."""
import re

import pytest
from live_engine import load, switch
from live_engine.model import VOCABULARY
from live_engine.release import REPOSITORY


def test_an_answer_is_read_to_its_end(stream):
    run = load.generate(stream.url, [1, 2, 3], 50)
    assert run.ids == list(range(1, 51))
    assert run.verifies == 17 and len(run.seen) == 18  # prefill's token, then 16 times 3 and one more
    assert run.seen[0][1:] == (0, 1) and run.seen[-1][1:] == (17, 50)


def test_a_request_is_greedy_unless_a_temperature_is_asked_for(stream):
    load.generate(stream.url, [1], 2)
    load.generate(stream.url, [1], 2, temperature=0.7)
    assert [body["sampling_params"]["temperature"] for _, body in stream.posts] == [0.0, 0.7]


def test_requests_are_called_off_once_all_have_their_steps(stream):
    runs = load.together(stream.url, [[1], [2], [3]], 50_000, steps=12)
    assert all(12 <= run.seen[-1][1] < 200 for run in runs)
    aborted = {body["rid"] for path, body in stream.posts if path == "/abort_request"}
    assert aborted == {body["rid"] for path, body in stream.posts if path == "/generate"}


def test_one_that_is_done_waits_for_the_others():
    enough = load.Enough(2, 5)
    assert not enough.reached(4, 5) and not enough.reached(5, 6)
    assert enough.reached(4, 5)


def made(times: list[float], verifies: int, tokens_a_chunk: int = 4) -> load.Run:
    run = load.Run(seen=[(t, i, 1 + tokens_a_chunk * i) for i, t in enumerate(times)], verifies=verifies)
    load.count_steps(run, len(times) - 1)
    return run


def test_step_time_leaves_the_first_steps_out():
    run = made([0.0, 5.0, 6.0, 6.1, 6.2, 6.3, 6.4], verifies=6)
    assert load.step_time([run]) == {"ms": 100.0, "tok_s": 40.0, "steps": 4}


def test_chunks_that_hold_several_steps_are_scaled_by_the_engines_count():
    run = made([i / 10 for i in range(11)], verifies=20)
    assert load.step_time([run])["ms"] == pytest.approx(50.0)


def test_only_the_time_in_which_all_ran_counts():
    slow_start = made([10 + i / 10 for i in range(21)], verifies=20)
    early = made([i / 100 for i in range(1001)] + [10.2 + i / 10 for i in range(9)], verifies=1009)
    timed = load.step_time([early, slow_start])
    assert timed["ms"] == pytest.approx(100.0, rel=0.02)


def test_requests_that_never_ran_together_are_an_error():
    with pytest.raises(ValueError, match="together"):
        load.step_time([made([0.0, 0.1, 0.2], 2), made([5.0, 5.1, 5.2], 2)])


def test_every_token_that_kdtreectl_bench_sends_is_in_the_models_vocabulary():
    text = (REPOSITORY / "agent/cli/bench_steps.cpp").read_text()
    found = re.search(r"kFirstId = (\d+), kIds = (\d+);", text)
    assert found and sum(map(int, found.groups())) <= VOCABULARY


def test_an_error_in_the_stream_is_an_error(stream, monkeypatch):
    monkeypatch.setattr(stream, "chunks", lambda body: iter([{"error": {"message": "too long"}}]))
    with pytest.raises(ValueError, match="too long"):
        load.generate(stream.url, [1], 5)


def test_longer_prompts_begin_with_shorter_ones():
    assert load.prompt_ids(3, 100)[:40] == load.prompt_ids(3, 40) != load.prompt_ids(4, 40)


def test_a_switch_is_seen_in_the_first_step_of_the_new_speed():
    slow = [(i / 10, i, i) for i in range(11)]
    fast = [(1.0 + i / 100, 10 + i, 10 + i) for i in range(1, 11)]
    assert switch.seen_after(slow + fast, 0.95, True, 0.03) == pytest.approx(0.05)
    assert switch.seen_after(slow + fast, 1.05, False, 0.03) is None


def test_latency_of_a_switch(stream, monkeypatch):
    class Release:
        def switch(self, mode: str, count: int) -> float:
            stream.step_s = {"off": 0.05, "validate": 0.05, "on": 0.002}[mode]
            return 0.01

    monkeypatch.setattr(switch, "ROUNDS", 2)
    monkeypatch.setattr(switch, "DWELL_S", 0.3)

    class Server:
        url = stream.url

    found = switch.latency(Server, Release())
    assert found["switches"] == 6 and found["reported_by_all_ranks_ms"]["median"] == 10.0
    assert found["seen_in_steps_ms"]["switches"] == 4
