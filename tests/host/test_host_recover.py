# SPDX-License-Identifier: Apache-2.0
"""kdtreectl killed, or the host reset, in the middle of a change: what is found then is whole, and goes one way or the other."""

from __future__ import annotations

import pytest

from kdtree_host import UNIT, UNIT_PATH, KdtreeHost

DROP_IN = f"{UNIT_PATH}.d/60-kdtree.conf"


def cut_off(host: KdtreeHost, *argv: str) -> None:
    """Starts a change that waits for a slow engine, and kills kdtreectl while it waits."""
    host.fault("slow_start:30@KDTREE_VERIFY")
    before = host.engine("InvocationID")
    job = host.start(["kdtreectl", *argv])
    host.wait("the engine is being restarted", lambda: host.path(DROP_IN).exists() and host.engine("InvocationID") not in ("", before), 90)
    pids = host.run(["pgrep", "-x", "kdtreectl"]).check().out.split()
    host.run(["kill", "-KILL", *pids]).check()
    job.communicate()


def without_kdtree(host: KdtreeHost) -> None:
    assert not host.path(DROP_IN).exists() and not host.path("/opt/kdtree/current").is_symlink()
    host.wait("the engine runs without kdtree",
              lambda: host.engine("ActiveState") == "active" and "KDTREE_VERIFY" not in host.environment()
              and host.http("http://127.0.0.1:30000/health")[0] == 200, 40)


def test_recover_after_kill(plain):
    cut_off(plain, "deploy", "--yes", "--accept-engine")
    assert plain.path(DROP_IN).exists()
    done = plain.ctl("recover")
    assert done.rc == 0, done.err
    without_kdtree(plain)
    again = plain.ctl("recover")
    assert again.rc == 0
    assert plain.ctl("status").rc == 0


def revert_units(host: KdtreeHost) -> str:
    return host.systemctl("list-units", "--all", "--no-legend", "kdtree-revert.*").out.strip()


def test_a_timer_in_pid_1_reverts_what_nobody_finishes(plain):
    cut_off(plain, "deploy", "--yes", "--accept-engine")
    assert "kdtree-revert.timer" in revert_units(plain)
    plain.fault()
    plain.wait("the timer has it undone", lambda: not plain.path("/var/lib/kdtree/journal/active").exists(), 90)
    without_kdtree(plain)
    assert plain.facts("history")[-1]["result"] == "recovered"
    plain.wait("the timer is gone", lambda: revert_units(plain) == "")
    assert plain.ctl("status").rc == 0


def test_a_change_that_ends_takes_its_timer_along(host):
    assert host.ctl("mode", "validate", "--yes").rc == 0
    assert revert_units(host) == ""


def test_a_fallback_that_was_cut_off_is_ended(host):
    """Forward fails, going back fails, and kdtreectl is killed while it starts the engine without kdtree."""
    host.configure(modes={"validate": {"mem_fraction_static": 0.9}})
    host.fault("crash_load:1@KDTREE_VERIFY")
    job = host.start(["kdtreectl", "mode", "validate", "--yes"])
    host.wait("the last way out is taken", lambda: not host.path(DROP_IN).exists(), 60)
    pids = host.run(["pgrep", "-x", "kdtreectl"]).check().out.split()
    host.run(["kill", "-KILL", *pids]).check()
    job.communicate()
    done = host.ctl("recover")
    assert done.rc == 5 and "runs without kdtree now" in done.err, done.err
    assert not host.path(DROP_IN).exists() and "KDTREE_VERIFY" not in host.environment()
    host.wait_healthy()
    assert host.ctl("mode").out.startswith("off  (cold")
    assert host.ctl("status").rc == 0


def test_a_cut_off_change_is_asked_about(plain):
    cut_off(plain, "deploy", "--yes", "--accept-engine")
    done = plain.ctl("uninstall")
    assert done.rc == 3 and "cut off" in done.err and "deploy none ->" in done.err, done.err
    assert plain.path(DROP_IN).exists()


def test_the_next_change_recovers_first(plain):
    cut_off(plain, "deploy", "--yes", "--accept-engine")
    plain.fault()
    done = plain.ctl("deploy", "--yes", "--accept-engine")
    assert done.rc == 0, done.err
    assert "an earlier change was cut off: deploy none ->" in done.err
    assert {rank["mode"] for rank in plain.ranks().values()} == {0} and len(plain.ranks()) == 8


def test_status_says_that_a_change_was_cut_off(plain):
    cut_off(plain, "deploy", "--yes", "--accept-engine")
    done = plain.ctl("status")
    assert done.rc == 1 and "recover" in done.out + done.err


@pytest.mark.parametrize("verb", ["deploy"])
def test_boot_recovers_before_the_engine_starts(package_layer, scratch, verb):
    kept = scratch / f"cut-off-{verb}"
    with KdtreeHost([package_layer]) as host:
        host.configure()
        host.install_engine()
        host.systemctl("enable", UNIT).check()
        cut_off(host, verb, "--yes", "--accept-engine")
        host.power_off(keep=kept)
    with KdtreeHost([kept, package_layer]) as host:
        without_kdtree(host)
        journal = host.journal("-b", "-u", "kdtree-recover.service", "-u", UNIT)
        recovered, started = journal.find("Finished kdtree-recover.service"), journal.find(f"Started {UNIT}")
        assert 0 <= recovered < started, journal
        assert host.ctl("status").rc == 0
