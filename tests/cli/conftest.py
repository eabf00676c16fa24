# SPDX-License-Identifier: Apache-2.0
"""kdtreectl as a program: what it prints and exits with where no systemd is involved."""

from __future__ import annotations

import os
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Callable

import pytest

REPOSITORY = Path(__file__).resolve().parents[2]


@dataclass(frozen=True)
class Done:
    """One command's end: exit status, stdout, stderr."""

    rc: int
    out: str
    err: str


@pytest.fixture(scope="session")
def program() -> Path:
    """The kdtreectl that was built: KDTREE_BUILD, else build/gpu or build/dev."""
    given = os.environ.get("KDTREE_BUILD")
    for folder in [Path(given)] if given else [REPOSITORY / "build" / preset for preset in ("gpu", "dev")]:
        if (folder / "agent" / "kdtreectl").exists():
            return folder / "agent" / "kdtreectl"
    pytest.skip("kdtreectl is not built: make build")


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """An empty folder to use as --root."""
    folder = tmp_path / "root"
    folder.mkdir()
    return folder


@pytest.fixture
def ctl(program: Path, root: Path) -> Callable[..., Done]:
    """Runs kdtreectl under `root`, without a terminal, with nothing of our own environment but PATH."""

    def run(*args: str, under_root: bool = True) -> Done:
        where = ["--root", str(root)] if under_root else []
        done = subprocess.run([program, *where, *args], capture_output=True, text=True, timeout=60,
                              stdin=subprocess.DEVNULL, env={"PATH": os.environ["PATH"], "TERM": "xterm"})
        return Done(done.returncode, done.stdout, done.stderr)

    return run
