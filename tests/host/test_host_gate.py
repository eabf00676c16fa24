# SPDX-License-Identifier: Apache-2.0
"""What else the health gate asks for, and what a running request gets before a restart."""

from __future__ import annotations

import json
import re

import pytest

from kdtree_host import HEALTH, PORT, UNIT, KdtreeHost

ROLLED_BACK = 4
GENERATE = f"http://127.0.0.1:{PORT}/generate"
REQUEST = {"input_ids": [1, 2, 3], "sampling_params": {"max_new_tokens": 4}}
STREAM = "/var/lib/sglang/stream"


def deploy(host: KdtreeHost):
    return host.ctl("deploy", "--yes", "--accept-engine")


def ask(host: KdtreeHost) -> str:
    return host.run(["curl", "-s", "-m", "20", "-d", json.dumps(REQUEST), GENERATE]).check().out


def golden(expect: str) -> dict:
    return {"golden": {"url": GENERATE, "request": REQUEST, "expect": expect}}


def without_kdtree(host: KdtreeHost) -> None:
    assert host.http(HEALTH)[0] == 200
    assert not any(name.startswith("KDTREE_") for name in host.environment())
    assert host.engine("DropInPaths") == ""


def test_a_golden_prompt_that_is_answered_right_opens_the_gate(plain):
    tokens = json.dumps(json.loads(ask(plain))["output_ids"])
    plain.configure(gate=golden(tokens))
    done = deploy(plain)
    assert done.rc == 0, done.err
    assert plain.environment()["KDTREE_VERIFY"] == "off"


def test_a_golden_prompt_that_is_answered_otherwise_is_a_failure(plain):
    plain.configure(gate=golden("[0, 0, 0, 0]"))
    answer = ask(plain)
    done = deploy(plain)
    assert done.rc == ROLLED_BACK and "golden prompt" in done.err and "[0, 0, 0, 0]" in done.err, done.err
    without_kdtree(plain)
    assert json.loads(ask(plain))["output_ids"] == json.loads(answer)["output_ids"]
    assert "golden prompt" in plain.facts("history")[-1]["reason"]


@pytest.mark.parametrize("free_mib, passes", [(1024, True), (900_000, False)])
def test_gpu_memory_headroom(plain, free_mib, passes):
    """The fake driver's GPUs have 96 GiB each, idle."""
    plain.configure(gate={"gpu_free_mib": free_mib})
    done = deploy(plain)
    if passes:
        assert done.rc == 0, done.err
        return
    assert done.rc == ROLLED_BACK and "MiB left, gate.gpu_free_mib is 900000" in done.err, done.err
    without_kdtree(plain)


def stream(host: KdtreeHost, tokens: int) -> None:
    """Starts a streamed request of `tokens`; returns when its first tokens have come."""
    body = json.dumps({"input_ids": [1, 2, 3], "stream": True, "sampling_params": {"max_new_tokens": tokens}})
    host.run(["systemd-run", "--unit=client", "--property=StandardOutput=truncate:" + STREAM,
              "curl", "-sN", "-m", "300", "-d", body, GENERATE]).check()
    host.wait("the first tokens", lambda: host.path(STREAM).exists() and "output_ids" in host.read(STREAM))


def test_running_requests_finish_before_a_restart_and_new_ones_find_no_engine(host):
    host.configure(deadlines={"drain_s": 120})
    host.fault("slow_stream:0.5")
    stream(host, 40)
    before = host.engine("InvocationID")
    job = host.start(["kdtreectl", "mode", "off", "--cold", "--yes"])
    host.wait("the engine drains", lambda: "Remaining number of requests 1" in host.journal("-u", UNIT), 60)
    assert "[DONE]" not in host.read(STREAM) and host.engine("InvocationID") == before
    assert host.run(["curl", "-s", "-m", "5", "-w", "%{http_code}", "-o", "/dev/null", "-d", json.dumps(REQUEST), GENERATE]).out != "200"
    out, err = job.communicate(timeout=180)
    assert job.returncode == 0 and "letting running requests finish, for at most 120 s" in err, err
    host.wait("the client has ended", lambda: host.show("client", "ActiveState")["ActiveState"] != "active")
    assert host.read(STREAM).endswith("data: [DONE]\n\n") and '"type": "length"' in host.read(STREAM)
    assert host.engine("InvocationID") != before


def test_a_request_that_does_not_end_is_cut_off_at_the_drain_deadline(host):
    host.configure(deadlines={"drain_s": 2})
    host.fault("slow_stream:0.5")
    stream(host, 1000)
    done = host.ctl("mode", "off", "--cold", "--yes")
    assert done.rc == 0 and "letting running requests finish, for at most 2 s" in done.err, done.err
    assert "[DONE]" not in host.read(STREAM)
    host.fault()
    host.wait_healthy()
    assert "KDTREE_VERIFY" not in host.environment()


def test_without_a_drain_deadline_the_outage_says_that_requests_are_cut_off(host):
    host.configure(deadlines={"drain_s": 0})
    done = host.ctl("mode", "off", "--cold", "--yes")
    assert done.rc == 0 and "running requests are cut off (deadlines.drain_s is 0)" in done.err, done.err
    assert "letting running requests finish" not in done.err


def test_progress_tells_stage_elapsed_last_start_and_deadline(host):
    """Stages come from the engine's own log lines."""
    assert host.ctl("mode", "off", "--cold", "--yes").rc == 0  # now a last start is known
    host.fault("slow_start:4")
    done = host.ctl("mode", "off", "--yes")
    assert done.rc == 0, done.err
    assert "the last start took" in done.err and "loading weights: " in done.err, done.err
    assert re.search(r"\[\d.* elapsed, the last start took \d.*, at most \d.* left\]", done.err), done.err
