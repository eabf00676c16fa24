# SPDX-License-Identifier: Apache-2.0
"""The Debian package: clean for lintian; installed, upgraded under a running engine, removed, purged."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from kdtree_host import ENGINE, UNIT, KdtreeHost, engine_layer
from machine import Bind
from package import build_folder

DROP_IN = f"/etc/systemd/system/{UNIT}.d/60-kdtree.conf"
CHANGED = ("/etc/systemd", "/etc/kdtree", "/opt/kdtree", "/var/lib/kdtree")


@pytest.fixture(scope="module")
def packages(scratch: Path) -> Path:
    """A folder with kdtree.deb and next.deb, the same as a later version."""
    folder = scratch / "deb"
    folder.mkdir()
    subprocess.run(["cpack", "--config", build_folder() / "CPackConfig.cmake", "-B", folder], check=True, capture_output=True)
    (made,) = folder.glob("kdtree_*.deb")
    made.rename(folder / "kdtree.deb")
    subprocess.run(["dpkg-deb", "-R", folder / "kdtree.deb", folder / "next"], check=True)
    control = folder / "next/DEBIAN/control"
    control.write_text("".join("Version: 99\n" if line.startswith("Version:") else line
                               for line in control.read_text().splitlines(keepends=True)))
    subprocess.run(["dpkg-deb", "--root-owner-group", "-b", folder / "next", folder / "next.deb"], check=True, capture_output=True)
    return folder


@pytest.fixture(scope="module")
def bare_layer(scratch: Path) -> Path:
    return engine_layer(scratch / "bare")


@pytest.fixture
def machine(request, packages: Path, bare_layer: Path):
    """Engine user and GPUs, kdtree not installed. With the parameter "-U": a container with users of its own."""
    options = [request.param] if getattr(request, "param", "") else []
    with KdtreeHost([bare_layer], [Bind(packages, "/mnt/deb")], stand_in_kernel=False, options=options) as host:
        yield host


BOTH = pytest.mark.parametrize("machine", ["", "-U"], indirect=True, ids=["root's", "unprivileged"])


def install(host: KdtreeHost, name: str) -> None:
    host.run(["dpkg", "-i", f"/mnt/deb/{name}.deb"], timeout=120).check()


def deploy(host: KdtreeHost) -> None:
    """With the stand-in for the kernel's sources (tests/engine/README.md)."""
    host.run(["sh", "-c", f"rm -r /usr/share/kdtree/kernel && cp -r {ENGINE}/light/kernel /usr/share/kdtree/kernel"]).check()
    host.configure()
    host.install_engine()
    host.ctl("deploy", "--yes", "--accept-engine").check()


def test_lintian_has_nothing_to_say(packages):
    done = subprocess.run(["lintian", "--allow-root", "--fail-on", "error,warning", packages / "kdtree.deb"], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, ""), done.stdout + done.stderr


def test_it_holds_what_it_should(packages):
    listed = subprocess.run(["dpkg-deb", "-c", packages / "kdtree.deb"], check=True, capture_output=True, text=True).stdout
    paths = {line.split()[5].lstrip(".") for line in listed.splitlines()}
    for path in ("/usr/bin/kdtreectl", "/usr/bin/kdtree-agent", "/usr/lib/systemd/system/kdtree-agent.service",
                 "/usr/lib/systemd/system/kdtree-recover.service", "/usr/lib/sysusers.d/kdtree.conf", "/usr/lib/tmpfiles.d/kdtree.conf",
                 "/usr/share/kdtree/kernel/CMakeLists.txt", "/usr/share/kdtree/sitecustomize/sitecustomize.py",
                 "/usr/share/man/man8/kdtreectl.8.gz", "/usr/share/man/man8/kdtree-agent.8.gz",
                 "/usr/share/bash-completion/completions/kdtreectl"):
        assert path in paths, path
    assert not any(path.startswith("/etc") for path in paths)


def test_installed_it_changes_nothing_until_asked(machine):
    before = machine.tree("/etc/systemd")
    machine.install_engine()
    engine = machine.engine("InvocationID")
    install(machine, "kdtree")
    assert machine.engine("InvocationID") == engine
    assert machine.systemctl("is-active", "kdtree-agent").out.strip() == "inactive"
    assert machine.run(["getent", "passwd", "kdtree-agent"]).rc == 0
    assert {path: held for path, held in machine.tree("/etc/systemd").items() if path in before} == before
    assert machine.systemctl("list-dependencies", "--plain", "basic.target").out.count("kdtree-recover.service") == 1


@BOTH
def test_an_upgrade_under_a_running_engine_changes_nothing_until_asked(machine):
    install(machine, "kdtree")
    deploy(machine)
    machine.ctl("mode", "validate", "--yes").check()
    before = (machine.engine("InvocationID"), machine.engine("MainPID"), machine.tree(*CHANGED), machine.environment())
    install(machine, "next")
    assert (machine.engine("InvocationID"), machine.engine("MainPID"), machine.tree(*CHANGED), machine.environment()) == before
    assert {rank["mode"] for rank in machine.ranks().values()} == {1}
    assert machine.engine("NeedDaemonReload") == "no"
    machine.wait("the agent runs", lambda: machine.systemctl("is-active", "kdtree-agent").out.strip() == "active")
    status = machine.ctl("status")
    assert status.rc == 0, status.out
    machine.ctl("mode", "off", "--yes").check()


@BOTH
def test_removal_waits_for_uninstall_and_purge_leaves_nothing(machine):
    install(machine, "kdtree")
    before = machine.tree("/etc/systemd")
    deploy(machine)
    refused = machine.run(["dpkg", "-r", "kdtree"])
    assert refused.rc != 0 and "kdtreectl uninstall" in refused.err
    assert machine.ctl("status").rc == 0
    machine.ctl("uninstall", "--yes").check()
    machine.run(["dpkg", "-r", "kdtree"]).check()
    assert not machine.path("/usr/bin/kdtreectl").exists() and machine.path("/etc/kdtree/kdtree.json").exists()
    assert machine.path("/var/lib/kdtree/audit.jsonl").exists()
    machine.run(["dpkg", "-P", "kdtree"]).check()
    for path in ("/etc/kdtree", "/var/lib/kdtree", "/opt/kdtree", "/run/kdtree", "/usr/share/kdtree/sitecustomize"):
        assert not machine.path(path).exists(), path
    left = {path: held for path, held in machine.tree("/etc/systemd").items() if UNIT not in path}
    assert left == {path: held for path, held in before.items() if UNIT not in path}
    machine.wait_healthy()


def test_completion_knows_verbs_and_options(machine):
    install(machine, "kdtree")
    ask = ("source /usr/share/bash-completion/completions/kdtreectl; COMP_WORDS=({words}); COMP_CWORD={at}; _kdtreectl; "
           "printf '%s\\n' \"${{COMPREPLY[@]}}\"")
    verbs = machine.run(["bash", "-c", ask.format(words="kdtreectl ''", at=1)]).check().out.split()
    assert {"deploy", "mode", "rollback", "status", "uninstall"} <= set(verbs)
    assert machine.run(["bash", "-c", ask.format(words="kdtreectl deploy --acc", at=2)]).check().out.split() == ["--accept-engine"]
    assert machine.run(["bash", "-c", ask.format(words="kdtreectl mode val", at=2)]).check().out.split() == ["validate"]
