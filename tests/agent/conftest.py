# SPDX-License-Identifier: Apache-2.0
"""A kdtree-agent of the build under test, with the fake NVML, in a folder of its own."""
from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


def built(name: str) -> Path:
    """A built file, from KDTREE_BUILD (as `make test` sets it), else from build/gpu or build/dev."""
    given = os.environ.get("KDTREE_BUILD")
    for build in [Path(given)] if given else [ROOT / "build/gpu", ROOT / "build/dev"]:
        for folder in ("agent", "tests/fake_nvml", "fake_nvml"):
            if (build / folder / name).is_file():
                return build / folder / name
    raise AssertionError(f"no {name} is built: run 'make build', or name a build in KDTREE_BUILD")


Series = dict[tuple[str, frozenset[tuple[str, str]]], float]


def parse(text: str) -> Series:
    """Series of a scrape by name and labels."""
    found: Series = {}
    for line in text.splitlines():
        if line and not line.startswith("#"):
            name, labels, value = re.fullmatch(r"([a-z0-9_]+)(?:\{(.*)\})? (\S+)", line).groups()
            pairs = re.findall(r'([a-z0-9_]+)="((?:[^"\\]|\\.)*)"', labels or "")
            found[name, frozenset(pairs)] = float(value)
    return found


def one(series: Series, name: str, **labels: str) -> float | None:
    """The value of the only series of that name which has these labels, and others maybe; None where there is none."""
    found = [value for (family, given), value in series.items() if family == name and labels.items() <= dict(given).items()]
    assert len(found) <= 1, f"{name} {labels} is not one series"
    return found[0] if found else None


class Agent:
    """Files under `root`, orders for the fake GPUs, and the program."""

    def __init__(self, folder: Path):
        self.root = folder / "root"
        self.stats = self.root / "run/kdtree/stats"
        self.orders = folder / "nvml.json"
        self.log = folder / "agent.log"
        self.process: subprocess.Popen | None = None
        self.writers: list[subprocess.Popen] = []
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        for made in (self.stats, self.root / "etc/kdtree", self.root / "opt/kdtree"):
            made.mkdir(parents=True)
        (self.root / "proc").symlink_to("/proc")
        self.gpus({})

    def gpus(self, orders: dict[str, object]) -> None:
        """What the fake NVML shows from now on (tests/fake_nvml/README.md)."""
        fresh = self.orders.with_suffix(".new")
        fresh.write_text(json.dumps(orders))
        fresh.rename(self.orders)

    def configure(self, ranks: int = 8, **more: object) -> None:
        engine = {"unit": "sglang.service", "python": "/usr/bin/python3", "health_url": "http://127.0.0.1:30000/health", "ranks": ranks}
        (self.root / "etc/kdtree/kdtree.json").write_text(json.dumps({"engine": engine, **more}))

    def start(self, *arguments: str, **environment: str) -> None:
        """Starts the agent and waits until it serves."""
        environment = {**os.environ, "KDTREE_FAKE_NVML": str(self.orders), **environment}
        command = [built("kdtree-agent"), "--root", self.root, "--nvml", built("libnvidia-ml.so.1"), *arguments]
        if "--listen" not in arguments:
            command += ["--listen", f"127.0.0.1:{self.port}"]
        with self.log.open("w") as log:
            self.process = subprocess.Popen([str(part) for part in command], env=environment, stdout=log, stderr=log)
        self.until(lambda: self.process.poll() is not None or self.get("/healthz")[0] == 200, "it serves")
        assert self.process.poll() is None, self.log.read_text()

    def get(self, path: str, method: str = "GET") -> tuple[int, str]:
        """Status and body; 0 where nobody listens. Fails the test where the agent takes longer than 5 s."""
        try:
            request = urllib.request.Request(f"http://127.0.0.1:{self.port}{path}", method=method)
            with urllib.request.urlopen(request, timeout=5) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            return error.code, error.read().decode()
        except urllib.error.URLError as error:
            assert not isinstance(error.reason, TimeoutError), "the agent took longer than 5 s to answer"
            return 0, ""

    def series(self) -> Series:
        return parse(self.get("/metrics")[1])

    def value(self, name: str, **labels: str) -> float | None:
        return one(self.series(), name, **labels)

    def family(self, name: str) -> dict[frozenset[tuple[str, str]], float]:
        return {labels: value for (family, labels), value in self.series().items() if family == name}

    def until(self, check: Callable[[], object], what: str, deadline_s: float = 30) -> None:
        end = time.monotonic() + deadline_s
        while not check():
            assert time.monotonic() < end, f"not within {deadline_s:.0f} s: {what}\n{self.log.read_text()}"
            time.sleep(0.1)

    def publish(self, script: str) -> subprocess.Popen:
        """Runs a process that publishes with the product's own writer: `script` sees `writer`, `f` and `array`."""
        head = ("import sys, time\nfrom array import array\nfrom kdtree_patch import stats_format as f\n"
                "from kdtree_patch.stats import StatsWriter\nwriter = StatsWriter(sys.argv[1])\n")
        environment = {**os.environ, "PYTHONPATH": str(ROOT / "sitecustomize")}
        environment.pop("KDTREE_VERIFY", None)
        writer = subprocess.Popen([sys.executable, "-c", head + script, str(self.stats)], env=environment)
        self.writers.append(writer)
        return writer

    def stop(self) -> int:
        """SIGTERM; the exit status."""
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(10)

    def close(self) -> None:
        for process in [self.process, *self.writers]:
            if process and process.poll() is None:
                process.kill()
                process.wait()


@pytest.fixture
def agent(tmp_path: Path) -> Iterator[Agent]:
    made = Agent(tmp_path)
    yield made
    made.close()
