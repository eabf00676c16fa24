# SPDX-License-Identifier: Apache-2.0
"""The plans run through, in order, against a stand-in server: what is measured where, and what a short time leaves out."""
import time
from pathlib import Path

import pytest
from live_engine import agree, context, host, load, observer_cost, plans, proofs, speed, switch
from live_engine.records import Record, check


class Server:
    """A running stand-in."""

    healthy_s = 1.0

    def __init__(self, name: str, url: str):
        self.name, self.url, self.closed = name, url, False

    def capture_s(self) -> float:
        return 2.0

    def wait_healthy(self, seconds: float) -> "Server":
        return self

    def close(self) -> None:
        self.closed = True


class Release:
    """Switching changes how long a step of the stand-in server takes."""

    library, folder = "lib.so", Path("/nowhere")

    def __init__(self, stream):
        self._stream, self._seen = stream, 0

    def switch(self, mode: str, count: int = 1) -> float:
        self._stream.step_s = {"off": 0.008, "validate": 0.009, "on": 0.002}[mode]
        return 0.01

    def ranks(self) -> list[dict]:
        self._seen += 100
        return [dict(tp_rank=0, compares=self._seen, mismatches=0, max_ulp=1.0, max_mean_ulp=0.1, publications=self._seen, batches={1: (2, 2)},
                     sort_state=1, calls_kernel=5, calls_engine=7,
                     handed_back=[0, 3, 0], kv_pairs=self._seen, kv_contiguous_pairs=self._seen // 2)]


@pytest.fixture
def run(tmp_path, head, stream, monkeypatch):
    made = context.Context("", tmp_path, tmp_path, 61, Record(tmp_path / "r.json", head), time.monotonic() + 600)
    made.servers = []

    def server(name: str, *_: object, **__: object) -> Server:
        made.servers.append(Server(name, stream.url))
        return made.servers[-1]

    monkeypatch.setattr(made, "server", server)
    monkeypatch.setattr(made, "make_release", lambda: setattr(made, "release", Release(stream)))
    monkeypatch.setattr(made, "release_of", lambda name: made.release)
    monkeypatch.setattr(speed, "SHAPES", {n: speed.Shape(s.context // 100, s.batch, 6, s.validate, s.again)
                                          for n, s in speed.SHAPES.items()})
    monkeypatch.setattr(speed, "FAST_STEPS", 12)
    timed = load.step_time  # what it says of time belongs to this machine; what the stand-in was told to take does not
    monkeypatch.setattr(load, "step_time", lambda runs: {**timed(runs), "ms": 1000 * stream.step_s})
    monkeypatch.setattr(switch, "ROUNDS", 1)
    monkeypatch.setattr(switch, "DWELL_S", 0.2)
    for module, names in ((proofs, ("router", "faults", "recapture")), (agree, ("greedy", "forced")),
                          (host, ("scrape", "bench", "exported")), (observer_cost, ("measure",))):
        for name in names:
            monkeypatch.setattr(module, name, lambda *_, name=name, **__: name)
    return made


def test_all_fills_the_table(run):
    plans.PLANS["all"](run)
    record = run.record.data
    assert run.failed == [] and "skipped" not in record
    assert all(server.closed for server in run.servers)
    check(record)
    rows = {(p["spec"], p["batch"], p["context"]): p for p in record["points"]}
    assert set(rows) == {("ngram", 1, c) for c in (10, 40, 160, 650, 1280)} | {("ngram", 4, 160), ("ngram", 16, 40)} | {
        ("dflash", 1, c) for c in (10, 160, 650)}
    for key, row in rows.items():
        assert row["on_ms"] < row["off_ms"] and (key[0] == "dflash" or "ceiling_ms" in row), key
    assert "validate_ms" in rows["ngram", 1, 650] and "validate_ms" not in rows["ngram", 1, 1280]
    assert "unpatched_ms" in rows["ngram", 1, 650] and "unpatched_ms" not in rows["ngram", 1, 1280]
    assert record["planted_faults"] == "faults" and record["greedy_tokens"] == "greedy"
    assert set(record["armed_cost"]) == {"1k", "16k"} and len(record["armed_cost"]["1k"]["off_ms"]) == speed.COST_ROUNDS
    assert record["prefill_65k_s_side_by_side"].keys() == {"ceiling", "unpatched", "armed"}
    assert record["temperatures"]["temperatures"] == list(proofs.TEMPERATURES)
    assert record["compares_of_the_table"]["mismatches"] == 0
    assert record["coming_and_going"]["mismatches"] == 0 and record["kv_churn_sorted"]["contiguous"] == 0.5
    assert record["live_switch"]["switches"] == 3 and record["observer_cost"] == "measure"
    assert "kdtreectl_bench" not in record  # no programs were brought


def test_with_kdtrees_own_programs(run):
    run.programs, run.shapes = "/programs", ("1k",)
    plans.PLANS["table"](run)
    assert run.record.data["agent_scrape"] == "scrape" and run.record.data["kdtreectl_bench"] == "bench"
    plans.PLANS["proofs"](run)
    assert run.record.data["kv_churn_unsorted"]["exported"] == "exported"


def test_eagle_with_graphs_and_without(run):
    plans.PLANS["eagle"](run)
    record = run.record.data
    for name in ("eagle", "eagle_eager"):
        assert record[name]["mismatches"] == 0 and record[name]["handed_back"] == {"no_metadata": 3}
        assert record[f"greedy_tokens_{name}"] == "greedy"
    assert [server.name for server in run.servers] == ["eagle", "eagle_eager"] and all(s.closed for s in run.servers)


def test_chosen_rows_alone(run):
    run.shapes = ("4k", "dflash:1k")
    plans.PLANS["table"](run)
    assert {(p["spec"], p["context"]) for p in run.record.data["points"]} == {("ngram", 40), ("dflash", 10)}


def test_a_server_that_does_not_start_costs_its_columns_alone(run, monkeypatch):
    monkeypatch.setattr(Server, "wait_healthy", lambda self, seconds: (_ for _ in ()).throw(
        RuntimeError("died")) if self.name == "ceiling" else self)
    run.shapes = ("1k",)
    plans.PLANS["table"](run)
    (row,) = run.record.data["points"]
    assert run.failed == ["start ceiling"] and "on_ms" in row and "ceiling_ms" not in row


def test_what_there_is_no_time_for_is_said(run):
    run.deadline = time.monotonic() + 11
    plans.PLANS["table"](run)
    skipped = run.record.data["skipped"]
    assert {"ceiling 1k", "armed 65k"} <= set(skipped) and set(skipped.values()) == {"out of time"}
