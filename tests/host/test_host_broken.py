# SPDX-License-Identifier: Apache-2.0
"""Changes that break: the old state comes back by itself, through the same gate, and the exit code says which way it went."""

from __future__ import annotations

import pytest

from kdtree_host import UNIT, UNIT_PATH, KdtreeHost

ROLLED_BACK, ROLLBACK_FAILED = 4, 5
WITH_PATCH = "@KDTREE_VERIFY"  # the fault follows the patch: the engine without it is well


def as_before_kdtree(host: KdtreeHost) -> None:
    assert host.http("http://127.0.0.1:30000/health")[0] == 200
    assert not any(name.startswith("KDTREE_") for name in host.environment())
    assert host.engine("DropInPaths", "NeedDaemonReload") == {"DropInPaths": "", "NeedDaemonReload": "no"}
    assert not host.path(f"{UNIT_PATH}.d/60-kdtree.conf").exists()
    assert not host.path("/opt/kdtree/current").is_symlink()


UNDONE = "0f04db7f1f604f1b8574ab2c526f5493"  # units/kdtree.catalog


@pytest.mark.parametrize("fault, word, engines_words", [
    ("crash_load:1", "", "crash_load, as asked"), ("crash_capture:0", "", "Capture cuda graph failed"),
    ("never_healthy", "health", ""), ("dead_rank:2:0", "", "Subprocess scheduler_2"),
])
def test_a_first_deploy_that_breaks_the_engine(plain, fault, word, engines_words):
    plain.configure(deadlines={"healthy_s": 15})
    plain.fault(fault + WITH_PATCH)
    done = plain.ctl("deploy", "--yes", "--accept-engine")
    assert done.rc == ROLLED_BACK, done.err
    assert word in done.err
    as_before_kdtree(plain)
    assert plain.facts("history")[-1]["result"] == "rolled back"
    assert engines_words in plain.ctl("history", "--full").out
    assert "rolled back" in plain.journal(f"MESSAGE_ID={UNDONE}")


def test_out_of_memory_in_a_mode_goes_back_to_the_mode_before(host):
    host.configure(modes={"validate": {"mem_fraction_static": 0.99}})
    host.fault("oom:0.95")
    done = host.ctl("mode", "validate", "--yes")
    assert done.rc == ROLLED_BACK, done.err
    assert "out of memory" in done.err.lower()
    argv = host.command_line()
    assert argv[argv.index("--mem-fraction-static") + 1] == "0.94"
    assert {rank["mode"] for rank in host.ranks().values()} == {0} and len(host.ranks()) == 8
    assert host.facts("history")[-1]["result"] == "rolled back"
    assert host.ctl("status").rc == 0


def test_a_rank_that_does_not_follow_is_not_left_alone(host):
    """A live switch while one rank's process is stopped: it can't report the new mode, and no old one either. The way out
    is the engine without the patch; in no case the other seven ranks stay in the mode that the eighth didn't reach."""
    pid = host.ranks()[4]["pid"]
    host.run(["kill", "-STOP", str(pid)]).check()
    done = host.ctl("mode", "validate", "--yes", "--timeout", "3")
    assert done.rc in (ROLLED_BACK, ROLLBACK_FAILED), done.err
    assert "rank" in done.err, done.err
    assert {rank["mode"] for rank in host.ranks().values()} <= {0}
    assert "KDTREE_VERIFY=validate" not in host.engine("Environment")
    host.wait_healthy()


def test_a_rollback_that_fails_too_prints_the_state(plain):
    """The engine is broken with and without kdtree from the moment of the restart."""
    plain.fault("crash_load:1")
    done = plain.ctl("deploy", "--yes", "--accept-engine")
    assert done.rc == ROLLBACK_FAILED, done.err
    assert UNIT in done.err
    assert not plain.path("/opt/kdtree/current").is_symlink()
    assert plain.engine("DropInPaths") == ""


def test_start_limits_do_not_stop_a_rollback(plain):
    """systemd counts manual starts: a unit at its limit has to be reset before the rollback's own start."""
    plain.install_engine(plain.read(UNIT_PATH).replace("[Unit]\n", "[Unit]\nStartLimitIntervalSec=1h\nStartLimitBurst=2\n"))
    plain.fault("crash_load:1" + WITH_PATCH)
    done = plain.ctl("deploy", "--yes", "--accept-engine")
    assert done.rc == ROLLED_BACK, done.err
    as_before_kdtree(plain)


def test_a_unit_that_restarts_itself_is_a_failure_all_the_same(plain):
    """With Restart=always a crashing engine is never "failed"; it must not pass for slow until the deadline only."""
    plain.install_engine(plain.read(UNIT_PATH).replace("[Service]\n", "[Service]\nRestart=always\nRestartSec=1\n"))
    plain.configure(deadlines={"healthy_s": 20})
    plain.fault("crash_load:1" + WITH_PATCH)
    done = plain.ctl("deploy", "--yes", "--accept-engine")
    assert done.rc == ROLLED_BACK, done.err
    as_before_kdtree(plain)


def test_someone_else_on_the_port_does_not_open_the_gate(plain):
    """The health answer has to come from the unit's own processes."""
    impostor = ("import http.server as h\nclass A(h.BaseHTTPRequestHandler):\n"
                "    def do_GET(self): self.send_response(200); self.end_headers()\n"
                "h.ThreadingHTTPServer(('127.0.0.1', 30001), A).serve_forever()\n")
    plain.run(["systemd-run", "--unit=impostor", "/usr/bin/python3", "-c", impostor]).check()
    plain.wait("the impostor answers", lambda: plain.http("http://127.0.0.1:30001/health")[0] == 200)
    plain.configure(engine={"health_url": "http://127.0.0.1:30001/health"}, deadlines={"healthy_s": 10})
    done = plain.ctl("deploy", "--yes", "--accept-engine")
    assert done.rc in (3, ROLLED_BACK, ROLLBACK_FAILED), done.err
    assert not any(name.startswith("KDTREE_") for name in plain.environment())
