# SPDX-License-Identifier: Apache-2.0
"""What the hook costs at the start of a Python process: python3 tests/patch/bench_start.py [RUNS]

Prints the median milliseconds of `python3 -c pass` without kdtree, with the hook idle (KDTREE_VERIFY unset) and with it
watching, taken in turns on this machine. The limit is 5 ms over a process without kdtree. results/start.txt is what a run said."""
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path

SITE = Path(__file__).resolve().parent.parent.parent / "sitecustomize"


def once(environ: dict[str, str]) -> float:
    """Milliseconds of one start and end."""
    begin = time.perf_counter()
    subprocess.run([sys.executable, "-c", "pass"], env=environ, check=True)
    return (time.perf_counter() - begin) * 1e3


def main() -> int:
    runs = int(sys.argv[1]) if len(sys.argv) > 1 else 60
    base = {"PATH": os.environ["PATH"]}
    cases = {"without kdtree": base, "hook idle": {**base, "PYTHONPATH": str(SITE)},
             "hook watching": {**base, "PYTHONPATH": str(SITE), "KDTREE_VERIFY": "on"}}
    found: dict[str, list[float]] = {name: [] for name in cases}
    for run in range(runs + 1):
        for name, environ in cases.items():
            took = once(environ)
            if run:  # the first round writes byte code
                found[name].append(took)
    model = next((line.split(":")[1].strip() for line in open("/proc/cpuinfo") if line.startswith("model name")), "unknown processor")
    print(f"{time.strftime('%Y-%m-%d', time.gmtime())}, Python {sys.version.split()[0]}, {model}, {os.cpu_count()} cores, "
          f"load {os.getloadavg()[0]:.1f}, {runs} starts each")
    plain = statistics.median(found["without kdtree"])
    for name, times in found.items():
        print(f"{name:15} median {statistics.median(times):6.2f} ms   {statistics.median(times) - plain:+5.2f} ms")
    return 0 if statistics.median(found["hook watching"]) - plain < 5 else 1


if __name__ == "__main__":
    sys.exit(main())
