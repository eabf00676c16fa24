# SPDX-License-Identifier: Apache-2.0
"""Two operators: while one verb changes the host, every other is told who is at work, and has no effect."""

from __future__ import annotations

import os
import signal

import pytest

from kdtree_host import KdtreeHost

LOCKED = 6
VERBS = {
    "deploy": ["deploy", "--yes", "--accept-engine"],
    "mode-live": ["mode", "validate", "--yes"],
    "mode-cold": ["mode", "off", "--cold", "--yes"],
    "rollback": ["rollback", "--yes"],
    "uninstall": ["uninstall", "--yes"],
}


@pytest.fixture(scope="module")
def shared(deployed_layer, package_layer):
    with KdtreeHost([deployed_layer, package_layer]) as machine:
        machine.wait_armed()
        yield machine


@pytest.mark.parametrize("first", ["mode-live", "mode-cold", "rollback", "uninstall", "deploy"])
def test_everybody_else_waits_for(shared, first):
    """The first operator's kdtreectl stands still (SIGSTOP) while it writes its journal's first steps."""
    host = shared
    job = host.start(["kdtreectl", *VERBS[first]])
    host.wait("it has begun", lambda: host.path("/var/lib/kdtree/journal/active").exists(), 120, 0.005)
    pid = host.run(["pgrep", "-ox", "kdtreectl"]).check().out.strip()
    host.run(["kill", "-STOP", pid]).check()
    try:
        assert host.path("/var/lib/kdtree/journal/active").exists(), f"{first} was over before it could be stopped"
        before = host.tree("/etc", "/opt", "/var/lib/kdtree")
        for second, argv in VERBS.items():
            done = host.ctl(*argv)
            assert done.rc == LOCKED and f"kdtreectl {VERBS[first][0]}" in done.err and pid in done.err, (second, done.rc, done.err)
        assert host.ctl("recover", "--unattended").rc == 0  # what the timer runs: quietly nothing
        assert host.tree("/etc", "/opt", "/var/lib/kdtree") == before
        assert host.ctl("history").rc == 0  # who only asks isn't locked out
    finally:
        host.run(["kill", "-CONT", pid])
        os.kill(job.pid, signal.SIGCONT)  # nsenter stands still with its child
        out, err = job.communicate(timeout=180)
    assert job.returncode == 0, err
    assert host.facts("history")[-1]["verb"] == VERBS[first][0]
