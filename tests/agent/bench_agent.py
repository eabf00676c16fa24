# SPDX-License-Identifier: Apache-2.0
"""What kdtree-agent costs with the fake's eight GPUs (whose own work is in the figures): CPU at a scrape every 5 s and every second, memory.

    python3 tests/agent/bench_agent.py [SECONDS [FILE.json]]     KDTREE_BUILD names the build

GPUs alone; with eight ranks of Kimi K2's size at EP 8; the same scraped each second; and with PCIe counters that take 25 ms each, as real ones do.
Prints a line each; keeps them in FILE.json. Not a test: figures of a busy machine say nothing.
"""
from __future__ import annotations

import datetime
import json
import os
import re
import sys
import tempfile
import time
from pathlib import Path

from conftest import Agent
from test_page import start_ranks

SECONDS = int(sys.argv[1]) if len(sys.argv) > 1 else 60
GPM = {"2": 90.0, "3": 20.0, "5": 11.0, "10": 40.0}
SCENES = {
    "eight GPUs": {"gpm": {**GPM, "20": 100.0, "21": 100.0}},
    "eight GPUs, eight ranks": {"gpm": {**GPM, "20": 100.0, "21": 100.0}},
    "eight GPUs, eight ranks, a scrape a second": {"gpm": {**GPM, "20": 100.0, "21": 100.0}},
    "eight GPUs, PCIe counters": {"gpm": GPM, "pcie_delay_ms": 25},
}


def cpu_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def measure(scene: str, gpu: dict[str, object]) -> dict[str, object]:
    with tempfile.TemporaryDirectory() as folder:
        agent = Agent(Path(folder))
        try:
            agent.configure()
            agent.gpus({"gpus": {str(i): {"utilization": 90, **gpu} for i in range(8)}})
            if "ranks" in scene:
                start_ranks(agent, 8)
            agent.start()
            time.sleep(10)
            period = 1 if "a second" in scene else 5
            before, began, slowest = cpu_seconds(agent.process.pid), time.monotonic(), 0.0
            while time.monotonic() - began < SECONDS:
                at = time.monotonic()
                text = agent.get("/metrics")[1]
                slowest = max(slowest, time.monotonic() - at)
                time.sleep(period)
            share = (cpu_seconds(agent.process.pid) - before) / (time.monotonic() - began)
            status = Path(f"/proc/{agent.process.pid}/status").read_text()
            return {"percent_of_a_core": round(100 * share, 3), "resident_mb": round(int(re.search(r"VmRSS:\s+(\d+)", status).group(1)) * 1024 / 1e6, 1),
                    "anonymous_mb": round(int(re.search(r"RssAnon:\s+(\d+)", status).group(1)) * 1024 / 1e6, 1),
                    "series": len(re.findall(r"^kdtree", text, re.M)), "moe_series": len(re.findall(r"^kdtree_moe", text, re.M)),
                    "slowest_scrape_ms": round(1000 * slowest, 1)}
        finally:
            agent.close()


def main() -> None:
    result = {"date": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"), "seconds": SECONDS,
              "load_of_the_machine": os.getloadavg()[0], "scenes": {}}
    for scene, gpu in SCENES.items():
        result["scenes"][scene] = measure(scene, gpu)
        print(scene, json.dumps(result["scenes"][scene]), flush=True)
    if len(sys.argv) > 2:
        Path(sys.argv[2]).write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
