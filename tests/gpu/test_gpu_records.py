# SPDX-License-Identifier: Apache-2.0
"""Records: their schema, and that figures of different machines don't mix."""
import json

import pytest
from live_engine import context
from live_engine.records import HEAD, Record, RecordError, check, merge

POINT = {"spec": "ngram", "batch": 1, "context": 1000, "off_ms": 21.8}
RESULTS = sorted((context.REPOSITORY / "kernel/bench/results").glob("engine-*.json"))


def test_every_call_is_on_disk_at_once(tmp_path, head):
    record = Record(tmp_path / "r.json", head)
    record.point("ngram", 1, 1000, off_ms=21.8)
    record.point("ngram", 1, 1000, on_ms=8.0)
    record.add("failed", stage="why")
    saved = json.loads((tmp_path / "r.json").read_text())
    assert saved["points"] == [{**POINT, "on_ms": 8.0}] and saved["failed"] == {"stage": "why"}


@pytest.mark.parametrize("change, words", [
    ({"gpu": None}, "gpu"), ({"points": [{"spec": "ngram"}]}, "batch, context"),
    ({"points": [POINT, POINT]}, "twice"), ({"points": [{**POINT, "on_ms": 0}]}, "on_ms is 0"),
    ({"points": [{**POINT, "off_ms": "fast"}]}, "off_ms is 'fast'")])
def test_what_is_no_record(head, change, words):
    record = {**head, "points": [], **change}
    record = {name: value for name, value in record.items() if value is not None}
    with pytest.raises(RecordError, match=words):
        check(record)


@pytest.mark.parametrize("name", [name for name in HEAD if name != "date"])
def test_merge_refuses_another_machine(head, name):
    other = {**head, name: "another"}
    with pytest.raises(RecordError, match=f"{name}: .*another"):
        merge({**head, "points": []}, {**other, "points": []})


def test_merge_joins_rows(head):
    first = {**head, "points": [POINT], "switch": 1}
    second = {**head, "date": "later", "points": [{**POINT, "off_ms": 22.0, "on_ms": 8.0},
                                                  {**POINT, "context": 64, "on_ms": 7.0}]}
    merged = merge(first, second)
    assert [p["context"] for p in merged["points"]] == [64, 1000]
    assert merged["points"][1]["off_ms"] == 22.0 and merged["switch"] == 1


@pytest.mark.parametrize("path", RESULTS, ids=lambda p: p.name)
def test_records_in_the_repository_are_records(path):
    check(json.loads(path.read_text()))


def test_a_stage_that_fails_is_recorded_and_the_next_goes_on(tmp_path, head, capsys):
    import time

    record = Record(tmp_path / "r.json", head)
    run = context.Context("", tmp_path, tmp_path, 61, record, time.monotonic() + 100)

    def fails() -> None:
        raise RuntimeError("no such thing")

    assert run.stage("first", fails) is None
    assert run.stage("second", lambda: 7, "seven") == 7
    assert run.stage("third", lambda: 8, "eight", needs_s=200) is None
    assert run.failed == ["first"] and record.data["failed"] == {"first": "no such thing"}
    assert record.data["seven"] == 7 and record.data["skipped"] == {"third": "out of time"}
    assert "SKIPPED third" in capsys.readouterr().out


def test_flags_of_two_ranks(tmp_path, head, monkeypatch):
    started = {}
    monkeypatch.setattr(context.servers, "Server", lambda *args: started.update(flags=args[4], environ=args[6]))
    run = context.Context("", tmp_path, tmp_path, 61, Record(tmp_path / "r.json", head), 0.0, tp=2)
    run.server("plain", tmp_path, ["--x"], ep=2)
    assert started["flags"] == ["--x", "--tp", "2", "--disable-custom-all-reduce", "--ep-size", "2"]
    assert started["environ"]["NCCL_NVLS_ENABLE"] == "0"
