# SPDX-License-Identifier: Apache-2.0
"""What run_gpu.sh does: argv are kdtree-agent and the folder for the results. Every stage writes what it has at once."""
from __future__ import annotations

import collections
import ctypes
import datetime
import json
import os
import re
import socket
import statistics
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

AGENT, OUT = sys.argv[1], Path(sys.argv[2])
# nvidia-smi's field -> (metric, labels, factor from its unit to ours)
FIELDS = {
    "utilization.gpu": ("kdtree_gpu_utilization_ratio", "", 0.01),
    "memory.used": ("kdtree_gpu_memory_used_bytes", "", 2**20),
    "memory.total": ("kdtree_gpu_memory_total_bytes", "", 2**20),
    "power.draw": ("kdtree_gpu_power_watts", "", 1),
    "enforced.power.limit": ("kdtree_gpu_power_limit_watts", "", 1),
    "temperature.gpu": ("kdtree_gpu_temperature_celsius", "", 1),
    "clocks.sm": ("kdtree_gpu_clock_hertz", 'clock="sm"', 1e6),
    "clocks.mem": ("kdtree_gpu_clock_hertz", 'clock="memory"', 1e6),
    "clocks.max.sm": ("kdtree_gpu_clock_max_hertz", 'clock="sm"', 1e6),
    "ecc.errors.corrected.volatile.total": ("kdtree_gpu_ecc_errors_total", 'kind="corrected"', 1),
    "ecc.errors.uncorrected.volatile.total": ("kdtree_gpu_ecc_errors_total", 'kind="uncorrected"', 1),
}
BUSY = """
import sys, time, torch
a = torch.randn(8192, 8192, device="cuda", dtype=torch.bfloat16)
end = time.time() + float(sys.argv[1])
while time.time() < end:
    for _ in range(20):
        b = a @ a
    torch.cuda.synchronize()
"""
result: dict[str, object] = {"date": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds")}


def save() -> None:
    (OUT / "agent-gpu.json").write_text(json.dumps(result, indent=1) + "\n")


def smi() -> list[dict[str, float | None]]:
    """Each GPU's fields in our units; None where nvidia-smi has no number."""
    text = subprocess.run(["nvidia-smi", f"--query-gpu={','.join(FIELDS)}", "--format=csv,noheader,nounits"], capture_output=True, text=True,
                          check=True, timeout=60).stdout
    def number(cell: str, factor: float) -> float | None:
        return float(cell) * factor if re.fullmatch(r"-?[\d.]+", cell) else None
    return [{field: number(cell.strip(), FIELDS[field][2]) for field, cell in zip(FIELDS, line.split(","))} for line in text.strip().splitlines()]


class Agent:
    def __init__(self) -> None:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.address = f"127.0.0.1:{free.getsockname()[1]}"
        root = OUT / "root"
        (root / "run/kdtree/stats").mkdir(parents=True, exist_ok=True)
        if not (root / "proc").is_symlink():
            (root / "proc").symlink_to("/proc")
        self.process = subprocess.Popen([AGENT, "--root", root, "--listen", self.address], stderr=(OUT / "agent.log").open("w"))
        end = time.monotonic() + 60
        while "kdtree_gpu_utilization_ratio{" not in self.scrape():
            assert self.process.poll() is None and time.monotonic() < end, (OUT / "agent.log").read_text()
            time.sleep(0.2)

    def scrape(self) -> str:
        try:
            with urllib.request.urlopen(f"http://{self.address}/metrics", timeout=10) as answer:
                return answer.read().decode()
        except OSError:
            return ""

    def values(self, name: str, labels: str = "") -> dict[int, float]:
        """By GPU."""
        found = re.findall(rf"^{name}\{{([^}}]*)\}} (\S+)$", self.scrape(), re.M)
        return {int(re.search(r'gpu="(\d+)"', given).group(1)): float(value) for given, value in found if labels in given}

    def one(self, name: str) -> float:
        return float(re.search(rf"^{name}(?:\{{[^}}]*\}})? (\S+)$", self.scrape(), re.M).group(1))

    def cpu_seconds(self) -> float:
        fields = Path(f"/proc/{self.process.pid}/stat").read_text().rsplit(")", 1)[1].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def resident_kib(pid: int | str) -> dict[str, int]:
    """By what is mapped: file name, [heap], anonymous."""
    sums: collections.Counter[str] = collections.Counter()
    name = ""
    for line in Path(f"/proc/{pid}/smaps").read_text().splitlines():
        if re.match(r"[0-9a-f]+-[0-9a-f]+ ", line):
            name = os.path.basename(line.split(maxsplit=5)[5]) if len(line.split(maxsplit=5)) > 5 else "anonymous"
        elif line.startswith("Rss:"):
            sums[name] += int(line.split()[1])
    return dict(sums.most_common())


def side_by_side(agent: Agent, seconds: int, load: str) -> None:
    """Both each second, alternately; the mean of each, and the largest difference of the means."""
    theirs: list[list[dict[str, float | None]]] = []
    ours: list[dict[str, dict[int, float]]] = []
    for _ in range(seconds):
        theirs.append(smi())
        ours.append({field: agent.values(name, labels) for field, (name, labels, _) in FIELDS.items()})
        time.sleep(1)
    rows = {}
    for gpu in range(len(theirs[0])):
        for field in FIELDS:
            smis = [moment[gpu][field] for moment in theirs if moment[gpu][field] is not None]
            agents = [moment[field][gpu] for moment in ours if gpu in moment[field]]
            rows[f"gpu {gpu} {field}"] = {"nvidia_smi": statistics.mean(smis) if smis else None, "agent": statistics.mean(agents) if agents else None}
    result.setdefault("side_by_side", {})[load] = rows
    (OUT / f"scrape-{load}.txt").write_text(agent.scrape())
    save()


def also(agent: Agent, load: str) -> None:
    """What nvidia-smi says in words of its own, and the agent's values of the same moment: GPM, clock events, processes, energy."""
    def say(*options: str) -> str:
        try:
            done = subprocess.run(["nvidia-smi", *options], capture_output=True, text=True, check=False, timeout=30)
            return (done.stdout + done.stderr)[-1500:]
        except (OSError, subprocess.TimeoutExpired) as error:
            return str(error)
    shown = re.findall(r"^(kdtree_gpu_(?:sm|tensor|dram|pcie|clock_event|processes|process_memory|energy)\w*\{.*)$", agent.scrape(), re.M)
    result.setdefault("also", {})[load] = {
        "gpm, by dmon (2 SM activity, 3 occupancy, 5 any tensor, 10 DRAM bandwidth, 20 and 21 PCIe)":
            say("dmon", "-c", "4", "--gpm-metrics", "2,3,5,10,20,21"),
        "clock events": say("--query-gpu=clocks_event_reasons.active", "--format=csv"),
        "processes": say("--query-compute-apps=pid,used_memory", "--format=csv"),
        "agent": shown[:60]}
    save()


def cost(agent: Agent, seconds: int, load: str) -> None:
    """CPU of the agent at a scrape every 5 s, and its memory."""
    before, began = agent.cpu_seconds(), time.monotonic()
    scrapes = []
    for _ in range(seconds // 5):
        at = time.monotonic()
        agent.scrape()
        scrapes.append(time.monotonic() - at)
        time.sleep(max(0.0, 5 - (time.monotonic() - at)))
    share = (agent.cpu_seconds() - before) / (time.monotonic() - began)
    result.setdefault("cost", {})[load] = {"percent_of_a_core": 100 * share, "slowest_scrape_ms": 1000 * max(scrapes),
                                           "resident_bytes": agent.one("kdtree_agent_resident_memory_bytes"),
                                           "sample_ms": 1000 * max(agent.values("kdtree_gpu_sample_duration_seconds").values()),
                                           "resident_kib_by_mapping": resident_kib(agent.process.pid)}
    save()


def driver_library() -> None:
    """What libnvidia-ml.so.1 takes in any process: memory of nvmlInit; time of the PCIe counters; its sample buffer."""
    def memory() -> int:
        return sum(resident_kib("self").values())
    memory()
    before = memory()
    nvml = ctypes.CDLL("libnvidia-ml.so.1")
    assert nvml.nvmlInit_v2() == 0
    device, count = ctypes.c_void_p(), ctypes.c_uint()
    nvml.nvmlDeviceGetCount_v2(ctypes.byref(count))
    nvml.nvmlDeviceGetHandleByIndex_v2(0, ctypes.byref(device))
    after = memory()
    value = ctypes.c_uint()
    times = []
    for _ in range(20):
        at = time.perf_counter()
        code = nvml.nvmlDeviceGetPcieThroughput(device, 0, ctypes.byref(value))
        times.append(time.perf_counter() - at)
    class Sample(ctypes.Structure):
        _fields_ = [("at_us", ctypes.c_ulonglong), ("value", ctypes.c_ulonglong)]
    kind, size = ctypes.c_int(), ctypes.c_uint()
    samples_code = nvml.nvmlDeviceGetSamples(device, 1, ctypes.c_ulonglong(0), ctypes.byref(kind), ctypes.byref(size), None)
    buffer = (Sample * max(1, size.value))()
    if samples_code == 0:
        samples_code = nvml.nvmlDeviceGetSamples(device, 1, ctypes.c_ulonglong(0), ctypes.byref(kind), ctypes.byref(size), buffer)
    at = sorted(buffer[i].at_us for i in range(size.value)) if samples_code == 0 else []
    result["driver_library"] = {
        "gpus": count.value, "resident_kib_of_loading_and_init": after - before, "pcie_counter_code": code, "pcie_counter_ms": 1000 * statistics.median(times),
        "samples_code": samples_code, "samples": len(at), "sample_interval_ms": statistics.median([b - a for a, b in zip(at, at[1:])]) / 1000 if len(at) > 2 else None}
    nvml.nvmlShutdown()
    save()


def main() -> None:
    result["gpu"] = subprocess.run(["nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader"], capture_output=True, text=True, check=True).stdout.strip().splitlines()
    save()
    driver_library()
    agent = Agent()
    try:
        side_by_side(agent, 10, "idle")
        also(agent, "idle")
        cost(agent, 60, "idle")
        busy = subprocess.Popen([sys.executable, "-c", BUSY, "75"], stderr=subprocess.DEVNULL)
        time.sleep(20)
        result["busy"] = busy.poll() is None  # False: no torch here, and the next figures are of an idle GPU
        side_by_side(agent, 15, "busy")
        also(agent, "busy")
        cost(agent, 25, "busy")
        busy.terminate()
        busy.wait()
        text = agent.scrape()
        result["gpm"] = sorted(set(re.findall(r"^(kdtree_gpu_(?:sm|tensor|dram)_\w+)\{", (OUT / "scrape-busy.txt").read_text(), re.M)))
        result["series"] = len(re.findall(r"^kdtree", text, re.M))
        save()
    finally:
        agent.process.terminate()
        result["exit"] = agent.process.wait(20)
        save()
    print(json.dumps({key: result[key] for key in ("gpu", "busy", "driver_library", "cost", "gpm", "series") if key in result}, indent=1)[:4000])


if __name__ == "__main__":
    main()
