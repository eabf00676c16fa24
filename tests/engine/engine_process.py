# SPDX-License-Identifier: Apache-2.0
"""A test engine run by a test: starts it, talks to it, reads what its ranks publish, and leaves nothing behind."""
from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shutil
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import Callable, Iterator

HERE = Path(__file__).resolve().parent
REPOSITORY = HERE.parent.parent
LIGHT_PYTHON = HERE / "light" / "bin" / "python3"
sys.path.insert(0, str(REPOSITORY / "sitecustomize"))

from kdtree_patch.control import pack_control  # noqa: E402
from kdtree_patch.stats import StatsError, read_stats  # noqa: E402


def wait_for(what: str | Callable[[], str], probe: Callable[[], object], seconds: float) -> object:
    """Polls until `probe()` is true and returns its value; AssertionError says `what` at the deadline."""
    deadline = time.monotonic() + seconds
    while True:
        value = probe()
        if value:
            return value
        if time.monotonic() > deadline:
            raise AssertionError(f"not within {seconds} s: {what if isinstance(what, str) else what()}")
        time.sleep(0.05)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


class Release:
    """A release folder as deploy makes it, for engines run without a host: kernel library, patch, manifest."""

    def __init__(self, root: Path, installed_kernel: Path, engine: dict[str, object]):
        """installed_kernel -- prefix with lib/ and python/kdtree_kernel; engine -- its probe()'s facts, accepted."""
        self.root, self._accepted = root, str(engine["fingerprint"])
        self.stats, self.control = root / "stats", root / "control"
        self.stats.mkdir(parents=True)
        self.folder = root / "releases" / "r1"
        shutil.copytree(installed_kernel, self.folder)
        for item in (REPOSITORY / "sitecustomize").iterdir():
            if item.is_dir() and item.name != "__pycache__":
                shutil.copytree(item, self.folder / "python" / item.name, ignore=shutil.ignore_patterns("__pycache__"))
        shutil.copy(REPOSITORY / "sitecustomize" / "sitecustomize.py", self.folder / "python")
        self.library = self.folder / "lib" / "libkdtree_torch.so"
        digest = hashlib.sha256(self.library.read_bytes()).hexdigest()
        (self.folder / "manifest.json").write_text(json.dumps(
            {"release": "r1", "torch": engine["torch"], "python_version": engine["python"],
             "engine_version": engine["version"], "engine_fingerprint": engine["fingerprint"],
             "files": {"lib/libkdtree_torch.so": digest}}))
        self._generation = 0

    def environ(self, mode: str) -> dict[str, str]:
        """What the drop-in sets."""
        return {"KDTREE_VERIFY": mode, "KDTREE_LIB": str(self.library), "KDTREE_STATS_DIR": str(self.stats),
                "KDTREE_CONTROL": str(self.control), "KDTREE_ACCEPT_ENGINE": self._accepted,
                "PYTHONPATH": str(self.folder / "python")}

    def switch(self, mode: int) -> int:
        """Writes the control file as kdtreectl does; returns its generation. 0 off, 1 validate, 2 on."""
        self._generation += 1
        fresh = self.control.with_suffix(".new")
        fresh.write_bytes(pack_control(mode, self._generation))
        fresh.chmod(0o644)
        fresh.rename(self.control)
        return self._generation

    @staticmethod
    def _read(path: Path) -> dict | None:
        for _ in range(20):  # a writer that lost the processor in the middle
            with contextlib.suppress(StatsError, FileNotFoundError):
                return read_stats(str(path))
            time.sleep(0.01)
        return None

    def ranks(self) -> dict[int, dict]:
        """Rank -> what its stats file says; files of processes that have ended are left out."""
        found = {}
        for path in self.stats.glob("*.stats"):
            values = self._read(path)
            if values and os.path.exists(f"/proc/{values['pid']}") and values["tp_rank"] >= 0:
                found[values["tp_rank"]] = values
        return found


class EngineProcess:
    """One running engine. Use start() as a context manager."""

    def __init__(self, command: list[str], environ: dict[str, str], log: Path):
        self.port, self.log_path = free_port(), log
        with open(log, "wb") as file:
            self.process = subprocess.Popen(
                [*command, "--model-path", "/models/none", "--port", str(self.port)], stdin=subprocess.DEVNULL,
                stdout=file, stderr=subprocess.STDOUT, env={
                    **{k: v for k, v in os.environ.items() if not k.startswith(("KDTREE_", "TEST_ENGINE_", "PYTHON"))},
                    "PYTHONDONTWRITEBYTECODE": "1", **environ}, start_new_session=True)

    @property
    def log(self) -> str:
        return self.log_path.read_text(errors="replace")

    def health(self, timeout: float = 30.0) -> int:
        """HTTP status of /health; 0 = nobody listens; TimeoutError = no answer."""
        try:
            return self._request("/health", None, timeout)[0]
        except urllib.error.URLError as error:
            if isinstance(error.reason, TimeoutError):
                raise error.reason from None
            return 0

    def generate(self, input_ids: list[int], tokens: int, timeout: float = 120.0) -> list[int]:
        """Greedy tokens."""
        body = {"input_ids": input_ids, "sampling_params": {"max_new_tokens": tokens}}
        status, answer = self._request("/generate", body, timeout)
        assert status == 200, answer
        return answer["output_ids"]

    def post(self, path: str, body: object) -> tuple[int, dict]:
        return self._request(path, body, 30.0)

    def _request(self, path: str, body: object, timeout: float) -> tuple[int, dict]:
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(f"http://127.0.0.1:{self.port}{path}", data)
        try:
            with urllib.request.urlopen(request, timeout=timeout) as answer:
                raw, status = answer.read(), answer.status
        except urllib.error.HTTPError as error:
            raw, status = error.read(), error.code
        return status, json.loads(raw) if raw else {}

    def wait_healthy(self, seconds: float) -> "EngineProcess":
        def healthy() -> bool:
            assert self.process.poll() is None, f"the engine ended with {self.process.returncode}\n{self.log[-4000:]}"
            return self.health() == 200

        wait_for("the engine is healthy", healthy, seconds)
        return self

    def wait_exit(self, seconds: float) -> int:
        """Exit status, negative for a signal."""
        try:
            return self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"the engine still runs after {seconds} s\n{self.log[-4000:]}") from None

    def children(self) -> list[int]:
        """Pids of the launcher's own children: ranks, detokenizer, resource tracker."""
        path = f"/proc/{self.process.pid}/task/{self.process.pid}/children"
        return [int(pid) for pid in Path(path).read_text().split()]

    def close(self) -> None:
        """Ends whatever is left of it: the session that it was started in."""
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit():
                with contextlib.suppress(OSError, ValueError):
                    stat = (entry / "stat").read_text().rpartition(")")[2].split()
                    if int(stat[3]) == self.process.pid:
                        os.kill(int(entry.name), 9)


@contextlib.contextmanager
def start(command: list[str], log: Path, environ: dict[str, str] | None = None) -> Iterator[EngineProcess]:
    """A starting engine that is gone at the end of the block. `command` without --model-path and --port."""
    engine = EngineProcess(command, environ or {}, log)
    try:
        yield engine
    finally:
        engine.close()


def light(*flags: str) -> list[str]:
    """Command of the light engine."""
    return [str(LIGHT_PYTHON), "-m", "sglang.launch_server", *flags]


def heavy(*flags: str) -> list[str]:
    """Command of the heavy engine, under the Python that runs the tests."""
    return [sys.executable, str(HERE / "serve.py"), *flags]


def probe(python: str) -> dict:
    """kdtree_patch.probe about the engine of `python`."""
    done = subprocess.run([python, "-m", "kdtree_patch.probe", "--json"], check=True, capture_output=True, text=True,
                          env={**os.environ, "PYTHONPATH": str(REPOSITORY / "sitecustomize")})
    return json.loads(done.stdout)
