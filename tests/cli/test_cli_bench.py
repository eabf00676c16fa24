# SPDX-License-Identifier: Apache-2.0
"""`kdtreectl bench --engine` against a server whose steps have a known length."""
from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "gpu"))
from stream_server import StreamServer  # noqa: E402

DONE, USAGE, REFUSED = 0, 2, 3


@pytest.fixture
def server():
    with StreamServer(step_s=0.03, accept=3).running() as running:
        yield running


def test_table_and_json(ctl, server):
    arguments = ["bench", "--engine", server.url + "/", "--contexts", "1k,2k:3", "--steps", "8"]
    done = ctl(*arguments, "--json")
    assert done.rc == DONE, done.err
    report = json.loads(done.out)
    assert (report["format"], report["mode"], report["gpus"]) == (1, "unpatched", [])
    assert [(p["context"], p["batch"]) for p in report["points"]] == [(1000, 1), (2000, 3)]
    for point in report["points"]:  # a step can't be shorter than the server makes it
        assert point["ms"] >= 30 and point["tokens_a_step"] == pytest.approx(3) and point["steps"] >= 4
    assert "context 1000" in done.err and "prefill" in done.err
    text = ctl(*arguments)
    assert text.rc == DONE and text.out.splitlines()[0].split() == [
        "CONTEXT", "BATCH", "UNPATCHED", "MS/STEP", "UNPATCHED", "TOK/S", "TOKENS/STEP"] or "unpatched ms/step" in text.out
    assert len(text.out.splitlines()) >= 3


def test_every_request_is_called_off(ctl, server):
    assert ctl("bench", "--engine", server.url, "--contexts", "100", "--steps", "6").rc == DONE
    sent = [body["rid"] for path, body in server.posts if path == "/generate"]
    assert len(sent) == 2 and {body["rid"] for path, body in server.posts if path == "/abort_request"} == set(sent)
    assert all(len(body["input_ids"]) == 100 for path, body in server.posts if path == "/generate")


def test_beside_an_earlier_report(ctl, server, tmp_path):
    earlier = tmp_path / "off.json"
    first = ctl("bench", "--engine", server.url, "--contexts", "1k", "--steps", "6", "--json")
    report = {**json.loads(first.out), "mode": "off"}
    report["points"][0]["ms"] = 900.0
    earlier.write_text(json.dumps(report))
    done = ctl("bench", "--engine", server.url, "--contexts", "1k", "--steps", "6", "--against", str(earlier))
    assert done.rc == DONE and "900.00" in done.out and "x" in done.out.splitlines()[-1]
    earlier.write_text(json.dumps({**report, "gpus": ["GPU-other"]}))
    refused = ctl("bench", "--engine", server.url, "--against", str(earlier))
    assert refused.rc == REFUSED and "GPU-other" in refused.err and refused.out == ""


@pytest.mark.parametrize("arguments, code, words", [
    (["--contexts", "1k"], USAGE, ["--engine"]),
    (["--engine", "http://127.0.0.1:9", "--contexts", "1x"], USAGE, ["'1x'"]),
    (["--engine", "http://127.0.0.1:9", "--steps", "1"], USAGE, ["--steps"]),
    (["--engine", "http://127.0.0.1:9"], REFUSED, ["context 1000", "127.0.0.1:9"]),
    ([], USAGE, ["/etc/kdtree/kdtree.json"]),
])
def test_what_is_wrong_is_named(ctl, arguments, code, words):
    done = ctl("bench", *arguments)
    assert done.rc == code and done.out == "" and all(word in done.err for word in words), done


@pytest.mark.parametrize("meta", [[], 5, {}, {"completion_tokens": "7"}, {"completion_tokens": None}])
def test_an_answer_without_a_count_of_tokens_is_shown(ctl, server, monkeypatch, meta):
    monkeypatch.setattr(server, "chunks", lambda body: iter([{"meta_info": meta}]))
    done = ctl("bench", "--engine", server.url, "--contexts", "9k")
    assert done.rc == REFUSED and done.err.splitlines()[-1].startswith("kdtreectl: context 9000") and "meta_info" in done.err


def test_a_refused_prompt_is_named(ctl, server, monkeypatch):
    monkeypatch.setattr(server, "chunks", lambda body: iter([{"error": {"message": "prompt too long"}}]))
    done = ctl("bench", "--engine", server.url, "--contexts", "9k")
    assert done.rc == REFUSED and "context 9000" in done.err and "prompt too long" in done.err
