# SPDX-License-Identifier: Apache-2.0
"""`make setup`: tests/env/setup.sh itself, with a lock of small wheels in place of the real one, and stubs for Debian's tools."""

from __future__ import annotations

import functools
import hashlib
import http.server
import os
import re
import shutil
import subprocess
import threading
import zipfile
from pathlib import Path
from typing import Iterator

import pytest

from contract_files import ROOT, tracked

ENV = ROOT / "tests" / "env"
PACKAGES = {"torch": "2.11.0", "triton": "3.6.0", **{f"part{number}": "1.0" for number in range(40)}}


def wheel(folder: Path, name: str, version: str) -> None:
    info = f"{name}-{version}.dist-info"
    files = {f"{name}/__init__.py": f"__version__ = {version!r}\n",
             f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n",
             f"{info}/WHEEL": "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n"}
    with zipfile.ZipFile(folder / f"{name}-{version}-py3-none-any.whl", "w") as archive:
        for path, text in files.items():
            archive.writestr(path, text)
        archive.writestr(f"{info}/RECORD", "".join(f"{path},,\n" for path in [*files, f"{info}/RECORD"]))


class Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *_: object) -> None:
        pass


class Clone:
    """A checkout's tests/env, and what the machine around it is like."""

    def __init__(self, root: Path, index: str):
        self.index = index  # where the wheels are served
        self.root, self.folder, self.cache = root, root / "clone", root / "cache"
        self.wheels, self.tools = root / "wheels", root / "tools"
        for folder in (self.folder, self.wheels, self.tools):
            folder.mkdir()
        shutil.copy2(ENV / "setup.sh", self.folder)
        (self.folder / "apt.txt").write_text("# what the build needs\ncmake\nfrobnicate\n")
        (self.folder / "engine.lock").write_text("".join(f"{name}=={version}\n" for name, version in PACKAGES.items()))
        for name in ("dev.lock", "added.lock", "sglang-sources.lock"):
            (self.folder / name).write_text("")
        for name, version in PACKAGES.items():
            wheel(self.wheels, name, version)
        self.tool("dpkg-query", "echo installed")
        self.tool("apt-get", f"echo \"$@\" >>{root}/apt; exit 100")
        self.tool("df", "printf 'Avail\\n 20G\\n'")

    def tool(self, name: str, script: str) -> None:
        (self.tools / name).write_text(f"#!/bin/sh\n{script}\n")
        (self.tools / name).chmod(0o755)

    def run(self, *options: str, folder: Path | None = None, wheels: bool = True) -> subprocess.CompletedProcess:
        environ = {"PATH": f"{self.tools}:{os.environ['PATH']}", "HOME": str(self.root), "KDTREE_CACHE": str(self.cache), "PIP_NO_INDEX": "1",
                   **({"PIP_FIND_LINKS": self.index} if wheels else {})}
        return subprocess.run([(folder or self.folder) / "setup.sh", *options], env=environ, capture_output=True, text=True, check=False)

    def asked_apt(self) -> bool:
        return (self.root / "apt").exists()


@pytest.fixture
def clone(tmp_path: Path) -> Iterator[Clone]:
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Quiet, directory=tmp_path / "wheels")) as server:
        threading.Thread(target=server.serve_forever).start()
        yield Clone(tmp_path, f"http://127.0.0.1:{server.server_port}/")
        server.shutdown()


def test_it_says_first_what_it_downloads_then_how_far_it_is_and_the_second_time_does_nothing(clone: Clone) -> None:
    done = clone.run()
    assert done.returncode == 0, done.stderr
    lines = done.stderr.splitlines()
    key = hashlib.sha256((clone.folder / "engine.lock").read_bytes()).hexdigest()[:16]
    env = clone.cache / f"env-{key}"
    assert lines[0] == (f"setup: Python environment with SGLang 0.5.17 and torch 2.11.0: {len(PACKAGES)} packages, about 4 GB to download, "
                        f"9 GB on disk, 4 minutes; into {env}")
    assert lines[1:4] == ["setup: 20 packages collected", "setup: 40 packages collected", "setup: installing (about a minute)"]
    assert lines[-2:] == ["setup: torch 2.11.0, triton 3.6.0", f"setup: ready: {env}"] and done.stdout == ""
    assert clone.run("--print").stdout == f"{env}\n"

    kept = {path: path.stat().st_mtime_ns for path in env.rglob("*")}
    again = clone.run(wheels=False)
    assert (again.returncode, again.stderr) == (0, f"setup: ready: {env}\n")
    second = clone.root / "second"
    shutil.copytree(clone.folder, second)
    assert clone.run(folder=second, wheels=False).stderr == f"setup: ready: {env}\n"
    assert {path: path.stat().st_mtime_ns for path in env.rglob("*")} == kept and not clone.asked_apt()

    (second / "engine.lock").write_text("torch==2.11.0\ntriton==3.6.0\n")
    assert clone.run("--print", folder=second).returncode == 1, "another lock is another environment"
    wheel(clone.wheels, "later", "1.0")
    (clone.folder / "added.lock").write_text("later==1.0\n")
    assert clone.run().stderr == f"setup: ready: {env}\n" and list(env.rglob("later/__init__.py")), "what was added goes into what is there"


def test_a_download_that_fails_leaves_nothing_that_looks_ready(clone: Clone) -> None:
    (clone.wheels / "part39-1.0-py3-none-any.whl").unlink()
    done = clone.run()
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1] == "setup: pip could not install the locked packages; see its message above"
    assert "part39" in done.stderr
    printed = clone.run("--print")
    assert printed.returncode == 1 and printed.stdout == "" and printed.stderr.endswith("run 'make setup'\n")
    wheel(clone.wheels, "part39", "1.0")
    assert clone.run().returncode == 0


def test_a_disk_that_is_too_small_is_said_before_anything_is_downloaded(clone: Clone) -> None:
    clone.tool("df", "printf 'Avail\\n 9G\\n'")
    done = clone.run()
    assert done.returncode == 1 and done.stderr == (
        f"setup: {clone.cache} has 9 GB free and the Python environment needs 16 while it is made; set KDTREE_CACHE to another disk\n")
    assert list(clone.cache.glob("env-*")) == []


def test_without_root_it_says_what_root_has_to_install(clone: Clone) -> None:
    clone.tool("id", "echo 1000")
    clone.tool("dpkg-query", 'for name; do :; done; [ "$name" = frobnicate ] || echo installed')
    done = clone.run()
    assert done.returncode == 1 and not clone.asked_apt()
    assert done.stderr == ("setup: Debian packages are missing and only root can install them. "
                           "Run as root: apt-get install frobnicate\n")


def test_nothing_else_installs() -> None:
    """Programs of this repository that call a package manager; into a folder for another host (--target) is no installation."""
    call = re.compile(r"(?:\b(?:apt|apt-get|pip3?|dpkg)\b[\"', -].*\binstall\b)|\bdpkg\b.* -i\b")
    found = set()
    for path in tracked():
        if path.suffix in (".py", ".sh", ".cmake") or path.name in ("Makefile", "run", "CMakeLists.txt"):
            found |= {path.relative_to(ROOT).as_posix() for line in path.read_text().splitlines()
                      if call.search(line) and "--target" not in line and not line.lstrip().startswith("#")}
    assert "tests/env/setup.sh" in found
    assert found - {"tests/env/setup.sh", "tests/contract/test_setup.py"} <= {"tests/host/test_host_deb.py", "tests/host/test_host_readme.py"}, "these: kdtree's own package, in a host"
