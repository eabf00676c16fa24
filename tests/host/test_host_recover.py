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


def test_the_next_change_recovers_first(plain):
    cut_off(plain, "deploy", "--yes", "--accept-engine")
    plain.fault()
    done = plain.ctl("deploy", "--yes", "--accept-engine")
    assert done.rc == 0, done.err
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
