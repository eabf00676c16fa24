# SPDX-License-Identifier: Apache-2.0
"""The light engine: its process model, its failures, and the product's patch inside it."""
import os
import signal

import pytest
from engine_process import Release, light, start, wait_for

START = 60  # seconds that a start may take on a loaded machine
KILLED = -signal.SIGKILL


def gone(pids: list[int]) -> bool:
    """None of the processes runs; a zombie that nobody has collected yet counts as gone."""
    for pid in pids:
        try:
            with open(f"/proc/{pid}/stat", encoding="utf-8") as file:
                if file.read().rpartition(")")[2].split()[0] != "Z":
                    return False
        except (FileNotFoundError, ProcessLookupError):
            pass
    return True


def test_start_answers_and_stops(tmp_path):
    with start(light("--tp", "8"), tmp_path / "log") as engine:
        engine.wait_healthy(START)
        children = engine.children()
        assert len(children) == 8 + 2  # detokenizer, resource tracker
        first = engine.generate([1, 2, 3], 12)
        assert len(first) == 12 and first == engine.generate([1, 2, 3], 12)
        assert first != engine.generate([1, 2, 4], 12)
        engine.process.terminate()
        assert engine.wait_exit(30) == 0
        wait_for("all children are gone", lambda: gone(children), 10)
    for line in ("Init torch distributed begin.", "Init torch distributed ends.", "Load weight begin.",
                 "Load weight end.", "KV Cache is allocated", "Memory pool end.",
                 "Capture target verify CUDA graph begin. backend=full, num_tokens_per_req=9, bs=[1, 2]",
                 "Capturing batches (bs=1 avail_mem=", "Capture target verify CUDA graph end",
                 "The server is fired up and ready to roll!"):
        assert line in engine.log


def test_tokens_repeat_from_start_to_start(tmp_path):
    answers = []
    for number in range(2):
        with start(light("--tp", "2"), tmp_path / f"log{number}") as engine:
            answers.append(engine.wait_healthy(START).generate([3, 1, 2], 16))
    assert answers[0] == answers[1]


@pytest.mark.parametrize("flags, words", [
    (["--mem-fraction", "0.5", "--no-such-flag"], "--no-such-flag"),
    (["--mem-fraction-static", "1.5"], "--mem-fraction-static: 1.5"),
    (["--tp", "8", "--ep-size", "3"], "--ep-size: 3"),
    (["--fault", "crash_lode"], "crash_lode"),
])
def test_bad_command_lines_end_with_status_2(tmp_path, flags, words):
    with start(light(*flags), tmp_path / "log") as engine:
        assert engine.wait_exit(START) == 2
        assert words in engine.log


@pytest.mark.parametrize("body", [[], {}, {"input_ids": []}, {"input_ids": ["a"]},
                                  {"input_ids": [1], "sampling_params": {"max_new_tokens": 0}}])
def test_bad_requests_are_refused(plain_light, body):
    status, answer = plain_light.post("/generate", body)
    assert status == 400 and answer["error"]["message"]


@pytest.fixture(scope="module")
def plain_light(tmp_path_factory):
    with start(light("--tp", "1"), tmp_path_factory.mktemp("plain") / "log") as engine:
        yield engine.wait_healthy(START)


def test_ranks_die_with_the_launcher(tmp_path):
    with start(light("--tp", "3"), tmp_path / "log") as engine:
        children = engine.wait_healthy(START).children()
        engine.process.kill()
        engine.wait_exit(10)
        wait_for("the ranks are gone", lambda: gone(children), 10)


@pytest.mark.parametrize("fault, words", [
    ("crash_load:1", "crash_load, as asked"),
    ("crash_capture", "Capture cuda graph failed"),
    ("oom:0.85", "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate"),
    ("dead_rank:1", "Subprocess scheduler_1"),
])
def test_a_failing_rank_ends_the_engine(tmp_path, fault, words):
    with start(light("--tp", "2"), tmp_path / "log", {"TEST_ENGINE_FAULT": fault}) as engine:
        assert engine.wait_exit(START) == KILLED
        assert words in engine.log and "Received sigquit from a child process" in engine.log


def test_memory_that_fits_starts(tmp_path):
    flags = ("--tp", "1", "--mem-fraction-static=0.85")
    with start(light(*flags), tmp_path / "log", {"TEST_ENGINE_FAULT": "oom:0.85"}) as engine:
        engine.wait_healthy(START)


def test_a_stop_while_loading_leaves_nothing(tmp_path):
    with start(light("--tp", "2"), tmp_path / "log", {"TEST_ENGINE_FAULT": "slow_start:600"}) as engine:
        wait_for("the ranks load", lambda: engine.log.count("Load weight begin") == 2, START)
        children = engine.children()
        engine.process.terminate()
        assert engine.wait_exit(30) == 0
        wait_for("all children are gone", lambda: gone(children), 10)


@pytest.mark.parametrize("fault", ["", "slow_start:600"])
def test_a_stop_of_all_processes_at_once_is_orderly(tmp_path, fault):
    """As systemd stops a unit: SIGTERM for the launcher and for every child in the same moment."""
    with start(light("--tp", "4"), tmp_path / "log", {"TEST_ENGINE_FAULT": fault}) as engine:
        if fault:
            wait_for("the ranks load", lambda: engine.log.count("Load weight begin") == 4, START)
        else:
            engine.wait_healthy(START)
        os.killpg(engine.process.pid, signal.SIGTERM)
        assert engine.wait_exit(30) == 0


def test_a_conditional_fault_follows_the_environment(tmp_path):
    fault = {"TEST_ENGINE_FAULT": "crash_load@MARK=on"}
    with start(light("--tp", "1"), tmp_path / "off", {**fault, "MARK": "off"}) as engine:
        engine.wait_healthy(START)
    with start(light("--tp", "1"), tmp_path / "on", {**fault, "MARK": "on"}) as engine:
        assert engine.wait_exit(START) == KILLED


def test_faults_at_run_time(tmp_path):
    faults = tmp_path / "fault"
    environ = {"TEST_ENGINE_FAULT_FILE": str(faults), "SGLANG_HEALTH_CHECK_TIMEOUT": "1"}
    with start(light("--tp", "2", "--fault", "slow_start:0.5"), tmp_path / "log", environ) as engine:
        assert engine.health() == 0
        engine.wait_healthy(START)
        faults.write_text("unhealthy")
        assert engine.health() == 503
        faults.write_text("hang\n")
        with pytest.raises(TimeoutError):
            engine.health(timeout=1.5)
        faults.write_text("stuck_rank:1")
        wait_for("the stuck rank is noticed", lambda: engine.health() == 503, 20)
        faults.unlink()
        wait_for("the engine is well again", lambda: engine.health() == 200, 20)
        faults.write_text("dead_rank_unnoticed:0")
        wait_for("the dead rank is noticed by health alone", lambda: engine.health() == 503, 20)
        assert engine.process.poll() is None


def test_never_healthy_and_slow_stop(tmp_path):
    with start(light("--tp", "1"), tmp_path / "log", {"TEST_ENGINE_FAULT": "never_healthy,slow_stop:600"}) as engine:
        wait_for("the server is up", lambda: "ready to roll" in engine.log, START)
        assert engine.health() == 503
        engine.process.terminate()
        wait_for("the stop has begun", lambda: "Gracefully exiting" in engine.log, 10)
        assert engine.process.poll() is None


# with the product's patch


def settled(release: Release, ranks: int, generation: int, more=lambda rank: True) -> dict[int, dict]:
    """All ranks' stats once each is active, has obeyed `generation` and satisfies `more`."""

    def look():
        found = release.ranks()
        ready = [r for r in found.values() if r["patch_state"] == 1 and r["control_generation"] == generation and more(r)]
        return found if len(ready) == ranks else None

    def why() -> str:
        return f"{ranks} ranks settle: {[(r['reason'], r['control_generation']) for r in release.ranks().values()]}"

    return wait_for(why, look, 60)


def test_eight_real_ranks_follow_the_mode(tmp_path, light_release):
    flags = ("--tp", "8", "--ep-size", "8", "--steps-per-second", "20")
    with start(light(*flags), tmp_path / "log", light_release.environ("validate")) as engine:
        engine.wait_healthy(START)
        ranks = settled(light_release, 8, 0, lambda r: r["compares"] >= 10)
        for number, rank in ranks.items():
            assert (rank["tp_rank"], rank["tp_size"], rank["moe_ep_rank"], rank["moe_ep_size"]) == (number, 8, number, 8)
            assert rank["mode"] == 1 and rank["mismatches"] == 0 and rank["calls_kernel"] == 0
            assert rank["sort_state"] == 1 and rank["longest_prefix"] > 0
            assert rank["moe_experts"] == 384 and rank["moe_steps"] > 0 and rank["moe_top_k"] == 8
            assert not any(rank["handed_back"]) and rank["device_name"] == "cpu"
        before = engine.generate([1, 2, 3], 12)
        settled(light_release, 8, light_release.switch(2), lambda r: r["mode"] == 2 and r["calls_kernel"] > 4)
        assert engine.generate([1, 2, 3], 12) == before
        off = settled(light_release, 8, light_release.switch(0), lambda r: r["mode"] == 0)
        settled(light_release, 8, 2, lambda r: r["calls_engine"] > off[r["tp_rank"]]["calls_engine"] + 2)
        assert all(r["calls_kernel"] < off[n]["calls_kernel"] + 3 for n, r in light_release.ranks().items())


def test_a_wrong_kernel_shows_in_validate_and_in_the_answer(tmp_path, light_release):
    faults = tmp_path / "fault"
    environ = {**light_release.environ("validate"), "TEST_ENGINE_FAULT_FILE": str(faults)}
    with start(light("--tp", "3", "--steps-per-second", "20"), tmp_path / "log", environ) as engine:
        right = engine.wait_healthy(START).generate([1, 2, 3], 24)
        settled(light_release, 3, 0, lambda r: r["compares"] >= 4)
        faults.write_text("wrong_kernel:1")
        wait_for("rank 1 mismatches", lambda: light_release.ranks()[1]["mismatches"] > 2, 60)
        ranks = light_release.ranks()
        assert ranks[0]["mismatches"] == ranks[2]["mismatches"] == 0 and ranks[1]["max_abs"] == pytest.approx(0.5)
        assert engine.generate([1, 2, 3], 24) == right  # validate answers with the engine's own kernel
        settled(light_release, 3, light_release.switch(2))
        assert engine.generate([1, 2, 3], 24) != right


def test_a_raising_kernel_disarms_one_rank_and_the_answer_stays_right(tmp_path, light_release):
    environ = {**light_release.environ("on"), "TEST_ENGINE_FAULT": "kernel_raises:0"}
    with start(light("--tp", "2"), tmp_path / "log", environ) as engine:
        answer = engine.wait_healthy(START).generate([1, 2, 3], 24)
        wait_for("rank 0 stands aside", lambda: light_release.ranks()[0]["patch_state"] == 2, 30)
        assert light_release.ranks()[1]["patch_state"] == 1
    with start(light("--tp", "2"), tmp_path / "plain") as engine:
        assert engine.wait_healthy(START).generate([1, 2, 3], 24) == answer


def test_a_broken_library_leaves_the_engine_alone(tmp_path, light_release):
    light_release.library.write_bytes(b"not a library")
    with start(light("--tp", "2"), tmp_path / "log", light_release.environ("on")) as engine:
        engine.wait_healthy(START).generate([1, 2], 4)
    assert "kdtree stands aside" in engine.log


def test_processes_that_are_no_ranks_stay_out(tmp_path, light_release):
    with start(light("--tp", "2"), tmp_path / "log", light_release.environ("off")) as engine:
        engine.wait_healthy(START)
        settled(light_release, 2, 0)
        pids = {rank["pid"] for rank in light_release.ranks().values()}
        files = {int(name.split(".")[0]) for name in os.listdir(light_release.stats)}
        assert files - pids <= {engine.process.pid}  # the launcher loads plugins, and says that it is no rank
