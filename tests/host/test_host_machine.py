# SPDX-License-Identifier: Apache-2.0
"""The throw-away host itself: it boots, is alone, and leaves nothing."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from machine import Bind, Machine, Scratch, _own_cgroups, sweep

HERE = Path(__file__).parent


def leftovers() -> list[str]:
    mounts = [line for line in Path("/proc/self/mounts").read_text().splitlines() if "/kdtree-host-" in line]
    groups = [str(group) for base in _own_cgroups() for group in base.glob("kdtree-host-*")]
    return mounts + groups + [str(folder) for folder in Path("/var/tmp").glob("kdtree-host-*")]


@pytest.fixture(scope="module")
def booted():
    with Machine(binds=[Bind(HERE, "/mnt/host-tests")]) as machine:
        yield machine


def test_it_is_a_running_debian_12(booted):
    assert booted.systemctl("is-system-running").out == "running\n"
    assert 'VERSION_ID="12"' in booted.read("/etc/os-release")


def test_its_network_is_its_own_and_loopback_only(booted):
    names = booted.run(["ip", "-br", "link"]).check().out.split("\n")
    assert [line.split()[0] for line in names if line] == ["lo"]


def test_binds_are_read_only(booted):
    done = booted.run(["touch", "/mnt/host-tests/x"])
    assert done.rc != 0 and "Read-only file system" in done.err
    assert booted.run(["cat", "/mnt/host-tests/machine.py"]).check().out == (HERE / "machine.py").read_text()


def test_a_command_that_takes_too_long_is_killed_inside_too(booted):
    with pytest.raises(TimeoutError):
        booted.run(["sleep", "7654"], timeout=0.3)
    assert booted.run(["pgrep", "-f", "sleep 7654"]).rc == 1


def test_two_hosts_do_not_see_each_other(booted):
    with Machine() as other:
        other.run(["systemd-run", "--unit=alone", "sleep", "1000"]).check()
        assert other.systemctl("is-active", "alone").out == "active\n"
        assert booted.systemctl("is-active", "alone").out == "inactive\n"
        assert not booted.path("/run/systemd/transient/alone.service").exists()


def test_what_a_host_wrote_can_be_the_next_ones_layer():
    scratch = Scratch()
    try:
        with Machine() as first:
            first.write("/etc/written", "by the first\n")
            first.run(["rm", "/etc/hostname"]).check()
            first.power_off(keep=scratch.folder / "kept")
        with Machine(layers=[scratch.folder / "kept"]) as second:
            assert second.read("/etc/written") == "by the first\n"
            assert not second.path("/etc/hostname").exists()
            assert second.systemctl("is-system-running").out == "running\n"
    finally:
        scratch.remove()


def test_nothing_is_left_when_its_owner_is_killed():
    script = ("import sys, time; from machine import Machine\n"
              "with Machine() as host: print(host.leader, flush=True); time.sleep(600)")
    owner = subprocess.Popen([sys.executable, "-c", script], cwd=HERE, stdout=subprocess.PIPE, text=True)
    leader = int(owner.stdout.readline())
    owner.send_signal(signal.SIGKILL)
    owner.wait()
    with Machine() as host:
        host.wait("the killed owner's host is gone", lambda: not os.path.exists(f"/proc/{leader}"), timeout=10)
        mine = host._scratch.folder.name
        sweep()
        assert [left for left in leftovers() if mine not in left and "kdtree-host-" in left] == foreign_hosts(mine)


def foreign_hosts(mine: str) -> list[str]:
    """Leftovers that are not left over: hosts of other test runs (their lock is held)."""
    import fcntl

    held = set()
    for folder in Path("/var/tmp").glob("kdtree-host-*"):
        with open(folder / "lock") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                held.add(folder.name)
    return [left for left in leftovers() if mine not in left and any(name in left for name in held)]
