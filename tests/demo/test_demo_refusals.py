# SPDX-License-Identifier: Apache-2.0
"""Where `make demo` can't run it says so in one line, with what still can be run, and starts nothing."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).resolve().parent
STILL = "; without a throw-away host these still run: ctest --preset gpu; python3 -m pytest tests -m 'not slow' (host tests are skipped)\n"
root_only = pytest.mark.skipif(os.getuid() != 0, reason="takes rights away, which only root has")


def demo(*before: str, path: str = "") -> subprocess.CompletedProcess:
    return subprocess.run([*before, sys.executable, HERE / "demo.py"], capture_output=True, text=True, check=False,
                          env={**os.environ, "PATH": path or os.environ["PATH"]}, timeout=60)


def refused(done: subprocess.CompletedProcess, why: str) -> None:
    assert (done.returncode, done.stdout) == (3, ""), done.stderr
    assert done.stderr == f"demo: {why}{STILL}"


@root_only
def test_without_root() -> None:
    refused(demo("setpriv", "--reuid", "65534", "--regid", "65534", "--clear-groups"), "a throw-away systemd host needs root")


@root_only
def test_without_systemd_nspawn(tmp_path: Path) -> None:
    for tool in ("debootstrap", "nsenter", "unshare", "setpriv"):
        (tmp_path / tool).symlink_to("/bin/true")
    refused(demo(path=str(tmp_path)), "systemd-nspawn is not installed; run 'make setup'")


@root_only
def test_where_mounts_are_not_allowed() -> None:
    done = demo("setpriv", "--bounding-set", "-sys_admin", "--inh-caps", "-sys_admin")
    assert (done.returncode, done.stdout) == (3, ""), done.stderr
    assert done.stderr.startswith("demo: this machine does not allow the mounts or namespaces it takes: ") and done.stderr.endswith(STILL)
    assert done.stderr.count("\n") == 1


def make(target: str, tmp_path: Path) -> subprocess.CompletedProcess:
    """`make TARGET` as somebody who is not root, with nothing that could be built or installed."""
    (tmp_path / "id").write_text("#!/bin/sh\necho 1000\n")
    (tmp_path / "id").chmod(0o755)
    return subprocess.run(["make", "-C", HERE.parents[1], target], capture_output=True, text=True, check=False, timeout=60,
                          env={"PATH": f"{tmp_path}:{os.environ['PATH']}", "HOME": str(tmp_path), "KDTREE_CACHE": str(tmp_path)})


@pytest.mark.parametrize("target", ["demo", "torture"])
def test_make_says_it_before_it_sets_anything_up(target: str, tmp_path: Path) -> None:
    done = make(target, tmp_path)
    said = [line for line in done.stderr.splitlines() if not line.startswith("make: ")]
    assert done.returncode == 2 and len(said) == 1, done.stderr
    assert said[0] == f"{target}: a throw-away systemd host needs root; what runs without it: make test (skips the host tests)"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["id"], "nothing was set up"
