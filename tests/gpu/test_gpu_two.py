# SPDX-License-Identifier: Apache-2.0
"""The plan for two GPUs, run through against stand-ins: what it starts, what it checks, what makes it fail."""
import subprocess
import time

import pytest
from live_engine import agree, context, host, plans, proofs, switch, two
from live_engine.orders import Orders
from live_engine.records import Record
from test_gpu_plans import Server

ROWS = 90


class TwoRanks:
    """Both ranks' stats: 7 layers whose tokens all go to the experts 0 to 7. The last rank lies once it was told to."""

    def __init__(self, pids: list[int], ep: int):
        self.pids, self.ep, self.lies, self.modes = pids, ep, None, []

    def switch(self, mode: str, count: int = 1) -> float:
        self.modes.append((mode, count))
        return 0.01

    def ranks(self) -> list[dict]:
        table = [[ROWS] * 8 + [0] * 376] * 7
        return [dict(tp_rank=rank, pid=pid, moe_ep_rank=rank % self.ep, moe_ep_size=self.ep, device_uuid=f"GPU-{rank}", moe_tokens=ROWS,
                     sections={1: table}, compares=10, mismatches=int(rank == self.lies))
                for rank, pid in enumerate(self.pids) if self.lives(pid)]

    @staticmethod
    def lives(pid: int) -> bool:
        from live_engine.release import lives
        return lives(pid)


def scrape_text(ep: int, gpus: int = 2, ranks: int = 2) -> str:
    load = dict([(0, 5040), (1, 5040 if ep == 1 else 0)][:ranks])
    return "".join([*(f'kdtree_gpu_utilization_ratio{{gpu="{gpu}",uuid="GPU-{gpu}"}} 0.5\n' for gpu in range(gpus)),
                    *(f'kdtree_rank_up{{rank="{rank}"}} 1\nkdtree_moe_rank_tokens_total{{moe_rank="{rank}"}} {load[rank]}\n' for rank in load)])


@pytest.fixture
def run(tmp_path, head, stream, monkeypatch):
    """A context whose servers are stand-ins; its ranks are real processes, so that one can be killed."""
    made = context.Context("", tmp_path, tmp_path, 61, Record(tmp_path / "r.json", head), time.monotonic() + 600, tp=2, programs="/programs")
    made.started, made.gpus, made.ranks, processes = [], 2, 2, []

    def server(name: str, model, flags, mode="", hooks=None, ep=1, **_: object) -> Server:
        made.started.append((name, ep, hooks))
        processes.extend(subprocess.Popen(["sleep", "600"]) for _ in range(made.ranks))
        made.fresh = TwoRanks([p.pid for p in processes[-made.ranks:]], ep)
        return Server(name, stream.url)

    def give(self, url: str, ranks: int = 1, **order: object) -> dict:
        if order.get("fault"):
            made.fresh.lies = order["fault_rank"]
        return {"verify_rows": ROWS}

    def scrape(context, server, kind: str) -> dict:
        (context.out / f"agent-{kind}.txt").write_text(scrape_text(made.fresh.ep, made.gpus, made.ranks))
        return {}

    def verdict(context) -> dict:
        here = {rank["tp_rank"]: rank for rank in made.fresh.ranks()}
        rows = [{"rank": rank, "verdict": "insufficient" if rank not in here else "mismatch" if here[rank]["mismatches"] else "clean",
                 "reason": "why" if rank not in here or here[rank]["mismatches"] else None} for rank in range(made.ranks)]
        return {"exit_status": 1, "verdict": {"ranks": rows}}

    monkeypatch.setattr(made, "server", server)
    monkeypatch.setattr(made, "make_release", lambda: None)
    monkeypatch.setattr(made, "release_of", lambda name: made.fresh)
    monkeypatch.setattr(Orders, "give", give)
    monkeypatch.setattr(proofs, "SETTLE_S", 0.01)
    monkeypatch.setattr(plans, "gpu_facts", lambda index: {"gpu_uuid": f"GPU-{index}"})
    monkeypatch.setattr(host, "scrape", scrape)
    monkeypatch.setattr(host, "verdict", verdict)
    monkeypatch.setattr(agree, "greedy", lambda *_: "greedy")
    monkeypatch.setattr(switch, "latency", lambda *_: "latency")
    yield made
    for process in processes:
        process.kill()
        process.wait()


def test_both_layouts_are_proven(run):
    plans.PLANS["two"](run)
    record = run.record.data
    assert run.failed == []
    assert [(name, ep) for name, ep, _ in run.started] == [("armed", 1), ("armed-ep", 2)]
    assert all(hooks["KDTREE_TEST_SKEW"] == "0-7" and hooks["KDTREE_TEST_FAULTS"] == "1" for _, _, hooks in run.started)
    assert record["router_tp2_ep1"]["rank 0"]["by_expert_rank"] == [7 * 8 * ROWS]
    assert record["router_tp2_ep2"]["rank 1"]["by_expert_rank"] == [7 * 8 * ROWS, 0]
    for kind in ("tp2_ep1", "tp2_ep2"):
        assert record[f"agent_scrape_{kind}"]["gpus"] == 2
        assert record[f"lying_rank_{kind}"]["mismatches_by_rank"] == {0: 0, 1: 1}
        assert record[f"dead_rank_{kind}"]["left"] == [0]
    assert [facts["gpu_uuid"] for facts in record["gpus"]] == ["GPU-0", "GPU-1"]


def test_one_gpu_in_the_scrape_is_not_two(run):
    run.gpus = 1
    plans.PLANS["two"](run)
    assert run.failed == ["tp2_ep1 agent", "tp2_ep2 agent"]


def test_load_that_is_not_where_it_was_planted_fails(run):
    wrong = scrape_text(1)
    with pytest.raises(RuntimeError, match="EP 2"):
        two.check_agent(wrong, 2, 2)
    with pytest.raises(RuntimeError, match="EP 1"):
        two.check_agent(scrape_text(2), 2, 1)
    with pytest.raises(RuntimeError, match="expected"):
        two.check_load(two.rank_load(TwoRanks([1, 1], 2), per_rank=192), 2, ROWS + 9, 7)


def test_one_gpu_is_a_dry_run(run):
    run.tp = run.gpus = run.ranks = 1
    plans.PLANS["two"](run)
    assert run.failed == [] and [(name, ep) for name, ep, _ in run.started] == [("armed", 1)]
    assert run.record.data["lying_rank_tp1_ep1"]["mismatches_by_rank"] == {0: 1}
    assert run.record.data["dead_rank_tp1_ep1"]["left"] == []
