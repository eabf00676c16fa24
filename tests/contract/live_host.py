# SPDX-License-Identifier: Apache-2.0
"""A host in a folder: fake GPUs, live ranks, a real kdtree-agent and a real Prometheus that scrapes it, all on loopback."""

from __future__ import annotations

import http.server
import json
import os
import re
import socket
import struct
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.parse
import urllib.request
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from contract_files import DASHBOARDS, ROOT, library, program

Answer = TypeVar("Answer")
RANKS = 8
GPUS = 8
RELEASE = "r-live"


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def until(ask: Callable[[], Answer | None], what: str, deadline_s: float = 60) -> Answer:
    """The first answer that is neither None, False nor empty."""
    end = time.monotonic() + deadline_s
    while True:
        answer = ask()
        if answer:
            return answer
        assert time.monotonic() < end, f"not within {deadline_s:.0f} s: {what}"
        time.sleep(0.25)


def gpu(index: int) -> dict[str, object]:
    """What fake GPU `index` is told to show, in the fake's units."""
    return {"utilization": 12 * index + 3, "memory_used": (index + 1) * 10**10, "power_mw": 100_000 + 7_000 * index,
            "temperature": 40 + index, "pcie_rx_kb": 1000 * (index + 1), "pcie_tx_kb": 500 * (index + 1), "sm_mhz": 2000 + index,
            "clock_events": 4, "ecc_corrected": index, "processes": [{"pid": 4000 + index, "memory": (index + 1) * 10**9}],
            "gpm": {"2": 50 + index, "3": 20, "5": 3 + index, "10": 40 + index}}


class Engine(http.server.BaseHTTPRequestHandler):
    """SGLang's /metrics as far as the dashboards read it: 4 tokens a step, 2 ms between two tokens."""

    began = time.monotonic()
    seconds, step_scale = 0.0, 1.0  # of all tokens so far; how much longer a step takes from now on

    def do_GET(self) -> None:
        now = time.monotonic() - type(self).began
        tokens = 2000 * now
        type(self).seconds += self.step_scale * 0.002 * (tokens - getattr(type(self), "tokens", 0))
        type(self).tokens = tokens
        values = {"num_running_reqs": 3, "num_queue_reqs": 1, "gen_throughput": 2000, "token_usage": 0.25, "spec_accept_length": 4,
                  "inter_token_latency_seconds_sum": self.seconds, "inter_token_latency_seconds_count": tokens}
        body = "".join(f'sglang:{name}{{model_name="kimi"}} {value}\n' for name, value in values.items()).encode()
        self.send_response(200)
        self.send_header("Content-Type", "text/plain; version=0.0.4")
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass


class LiveHost:
    """Started by `with`; everything it started is gone afterwards."""

    def __init__(self, folder: Path):
        self.root = folder / "root"
        self.folder = folder
        self.orders = folder / "orders.json"  # for the ranks: live_rank.py
        self.rules_file = DASHBOARDS / "rules.yml"
        self.gpus = {str(index): gpu(index) for index in range(GPUS)}
        self.xids = [{"id": 1, "gpu": 2, "xid": 31}, {"id": 2, "gpu": 2, "xid": 31}, {"id": 3, "gpu": 6, "xid": 79}]
        self.agent_port, self.prometheus_port = free_port(), free_port()
        self.ranks: list[subprocess.Popen] = []
        self._programs: list[subprocess.Popen] = []
        self._engine = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Engine)

    def __enter__(self) -> LiveHost:
        try:
            self._make_root()
            self.instruct()
            self.ranks = [self._start_rank(rank) for rank in range(RANKS)]
            self._start_agent()
            threading.Thread(target=self._engine.serve_forever, daemon=True).start()
            self._start_prometheus()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._engine.shutdown()
        self._engine.server_close()
        started = [*self._programs, *self.ranks]
        for process in started:
            process.terminate()
        for process in started:
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()

    def _make_root(self) -> None:
        for made in ("etc/kdtree", "run/kdtree/stats", f"opt/kdtree/releases/{RELEASE}", "var/lib/kdtree"):
            (self.root / made).mkdir(parents=True)
        (self.root / "proc").symlink_to("/proc")
        (self.root / "sys").symlink_to("/sys")
        (self.root / "opt/kdtree/current").symlink_to(f"releases/{RELEASE}")
        config = {"engine": {"unit": "sglang.service", "python": "/usr/bin/python3", "health_url": "http://127.0.0.1:30000/health",
                             "ranks": RANKS}}
        (self.root / "etc/kdtree/kdtree.json").write_text(json.dumps(config))
        (self.root / "var/lib/kdtree/state.json").write_text(json.dumps({"format": 1, "trial": False}))
        body = struct.pack("<8sIIQ64s", b"KDTCTRL1", 1, 1, 1, RELEASE.encode())  # agent/stats/control_abi.h: validate
        (self.root / "run/kdtree/control").write_bytes(body + struct.pack("<II", zlib.crc32(body), 0))

    def instruct(self) -> None:
        """Gives the fake NVML its present orders, in one piece."""
        beside = self.folder / "gpus.json.new"
        beside.write_text(json.dumps({"count": GPUS, "gpus": self.gpus, "xids": self.xids}))
        beside.rename(self.folder / "gpus.json")

    def order(self, **fields: object) -> None:
        """What all ranks publish otherwise from now on."""
        beside = self.orders.with_suffix(".new")
        beside.write_text(json.dumps(fields))
        beside.rename(self.orders)

    def _start_rank(self, rank: int) -> subprocess.Popen:
        environment = {**os.environ, "PYTHONPATH": str(ROOT / "sitecustomize")}
        environment.pop("KDTREE_VERIFY", None)
        return subprocess.Popen([sys.executable, str(Path(__file__).with_name("live_rank.py")), str(self.root / "run/kdtree/stats"),
                                 RELEASE, str(rank), str(RANKS), str(self.orders)], env=environment)

    def _log(self, name: str) -> object:
        return (self.folder / f"{name}.log").open("w")

    def _start_agent(self) -> None:
        environment = {**os.environ, "KDTREE_FAKE_NVML": str(self.folder / "gpus.json")}
        agent = self.agent = subprocess.Popen([str(program("kdtree-agent")), "--root", str(self.root), "--nvml", str(library("libnvidia-ml.so.1")),
                                  "--listen", f"127.0.0.1:{self.agent_port}"], env=environment,
                                 stdout=self._log("agent"), stderr=subprocess.STDOUT)
        self._programs.append(agent)
        until(lambda: self._alive(agent, "agent") and self.scrape(), "kdtree-agent answers /metrics")

    def _start_prometheus(self) -> None:
        config = (DASHBOARDS / "prometheus.yml").read_text()
        for given, wanted in (("127.0.0.1:9817", f"127.0.0.1:{self.agent_port}"), ("127.0.0.1:30000", self.engine), ("scrape_interval: 5s", "scrape_interval: 1s"),
                              ("scrape_timeout: 4s", "scrape_timeout: 1s"), ("evaluation_interval: 15s", "evaluation_interval: 1s"),
                              ("- rules.yml", f"- {self.rules_file}")):
            assert given in config, given
            config = config.replace(given, wanted)
        (self.folder / "prometheus.yml").write_text(config)
        server = subprocess.Popen(["prometheus", f"--config.file={self.folder / 'prometheus.yml'}",
                                   f"--storage.tsdb.path={self.folder / 'tsdb'}", f"--web.listen-address=127.0.0.1:{self.prometheus_port}"],
                                  stdout=self._log("prometheus"), stderr=subprocess.STDOUT)
        self._programs.append(server)
        until(lambda: self._alive(server, "prometheus") and self.instant('up{job="kdtree"} == 1'), "Prometheus has scraped the agent")

    def _alive(self, process: subprocess.Popen, name: str) -> bool:
        assert process.poll() is None, f"{name} ended with {process.returncode}: {(self.folder / f'{name}.log').read_text()[-2000:]}"
        return True

    @property
    def instance(self) -> str:
        return f"127.0.0.1:{self.agent_port}"

    @property
    def engine(self) -> str:
        return f"127.0.0.1:{self._engine.server_port}"

    def scrape(self) -> str:
        """The agent's /metrics now; "" while it doesn't listen."""
        try:
            with urllib.request.urlopen(f"http://{self.instance}/metrics", timeout=10) as answer:
                return answer.read().decode()
        except urllib.error.URLError:
            return ""

    def _api(self, path: str, **parameters: str) -> dict:
        url = f"http://127.0.0.1:{self.prometheus_port}/api/v1/{path}?{urllib.parse.urlencode(parameters)}"
        try:
            with urllib.request.urlopen(url, timeout=10) as answer:
                return json.load(answer)["data"]
        except urllib.error.HTTPError as error:
            if error.code == 503:  # still starting
                return {"result": [], "groups": []}
            raise AssertionError(f"{path} {parameters}: {error.read().decode()}") from error
        except urllib.error.URLError:
            return {"result": [], "groups": []}

    def instant(self, query: str) -> dict[tuple[tuple[str, str], ...], float]:
        """Value by label set; the metric's name, job, instance and uuid (gpu says it) left out."""
        return {_labels(series["metric"]): float(series["value"][1]) for series in self._api("query", query=query)["result"]}

    def ranged(self, query: str, seconds: int = 5) -> dict[tuple[tuple[str, str], ...], list[float]]:
        """Values over the last `seconds`, one a second."""
        now = time.time()
        answer = self._api("query_range", query=query, start=f"{now - seconds:.3f}", end=f"{now:.3f}", step="1")
        return {_labels(series["metric"]): [float(value) for _, value in series["values"]] for series in answer["result"]}

    def rules(self) -> list[dict]:
        return [rule for group in self._api("rules")["groups"] for rule in group["rules"]]

    def panel_query(self, expression: str) -> str:
        """A panel's expression as Grafana would send it for this instance at a scrape a second."""
        for variable, value in (("$__rate_interval", "4s"), ("$job", ".+"), ("$instance", re.escape(self.instance)),
                                ("$engine", ".+")):
            expression = expression.replace(variable, value.replace("\\", "\\\\"))
        assert "$" not in expression
        return expression


def _labels(metric: dict[str, str]) -> tuple[tuple[str, str], ...]:
    return tuple(sorted((name, value) for name, value in metric.items() if name not in ("__name__", "job", "instance", "uuid")))
