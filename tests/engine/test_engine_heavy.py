# SPDX-License-Identifier: Apache-2.0
"""The heavy engine with the product's patch and the real kernel: one start, two ranks, everything on the way."""
import signal

import pytest
from engine_process import heavy, start, wait_for

pytestmark = pytest.mark.slow
PROMPT = [1, 2, 3]


@pytest.fixture(scope="module")
def faults(tmp_path_factory):
    return tmp_path_factory.mktemp("faults") / "fault"


@pytest.fixture(scope="module")
def engine(tmp_path_factory, heavy_release, faults):
    """Two ranks on the CPU, validate, a step now and then."""
    environ = {**heavy_release.environ("validate"), "TEST_ENGINE_FAULT_FILE": str(faults)}
    flags = ("--ranks", "2", "--ep-size", "2", "--steps-per-second", "4")
    with start(heavy(*flags), tmp_path_factory.mktemp("heavy-log") / "log", environ) as running:
        yield running.wait_healthy(240)


@pytest.fixture(scope="module")
def right(engine, heavy_release) -> list[int]:
    """What the engine answers while its own kernel answers."""
    return engine.generate(PROMPT, 12)


def test_tokens_repeat(engine, right):
    assert len(right) == 12
    assert engine.generate(PROMPT, 12) == right
    assert engine.generate([4, 5, 6], 12) != right


def test_validate_compares_on_every_rank(heavy_release, engine):
    wait_for("compares", lambda: all(r["compares"] >= 8 for r in heavy_release.ranks().values()), 120)
    ranks = heavy_release.ranks()
    assert sorted(ranks) == [0, 1]
    for number, rank in ranks.items():
        assert (rank["tp_size"], rank["moe_ep_rank"], rank["moe_ep_size"]) == (2, number, 2)
        assert rank["patch_state"] == 1 and rank["mode"] == 1 and rank["mismatches"] == 0
        assert 0 <= rank["max_ulp"] <= 4 and rank["longest_prefix"] > 0
        assert rank["sort_state"] == 1 and not any(rank["handed_back"])
        assert rank["moe_experts"] == 384 and rank["moe_top_k"] == 8 and rank["moe_steps"] > 0


def test_on_answers_the_same(heavy_release, engine, right):
    generation = heavy_release.switch(2)
    wait_for("both ranks are on", lambda: all(
        r["mode"] == 2 and r["control_generation"] == generation and r["calls_kernel"] > 0
        for r in heavy_release.ranks().values()), 60)
    assert engine.generate(PROMPT, 12) == right


def test_a_wrong_kernel_changes_the_answer_and_validate_finds_it(heavy_release, engine, right, faults):
    faults.write_text("wrong_kernel:1:4")
    assert engine.generate(PROMPT, 12) != right  # still on
    heavy_release.switch(1)
    wait_for("rank 1 mismatches", lambda: heavy_release.ranks()[1]["mismatches"] > 0, 60)
    assert heavy_release.ranks()[0]["mismatches"] == 0
    assert engine.generate(PROMPT, 12) == right
    faults.unlink()


def test_a_dead_rank_ends_the_engine(engine, faults, right):
    faults.write_text("dead_rank:1")
    assert engine.wait_exit(60) == -signal.SIGKILL
    assert "Subprocess scheduler_1" in engine.log
