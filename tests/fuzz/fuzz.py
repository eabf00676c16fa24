# SPDX-License-Identifier: Apache-2.0
"""Runs the fuzzers: from the corpus in the repository, into build/fuzz/found/NAME (new inputs) and build/fuzz/crash-NAME-*.

    fuzz.py [--seconds 600] [--minimize] [NAME ...]

--minimize puts the smallest set of inputs that covers as much as everything found into tests/fuzz/corpus."""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
BUILD = HERE.parents[1] / "build" / "fuzz"
PROGRAMS = BUILD / "tests" / "fuzz"
NAMES = ("config", "journal", "unit_text", "stats")
MAX_BYTES = 16384


def fuzz(name: str, *limits: str) -> subprocess.CompletedProcess:
    """One fuzzer, from the corpus, within `limits` (libFuzzer's options)."""
    found = BUILD / "found" / name
    found.mkdir(parents=True, exist_ok=True)
    return subprocess.run(
        [PROGRAMS / f"fuzz_{name}", f"-max_len={MAX_BYTES}", "-rss_limit_mb=2048", "-timeout=10", "-print_final_stats=1",
         f"-artifact_prefix={BUILD}/crash-{name}-", *limits, found, HERE / "corpus" / name],
        capture_output=True, text=True, errors="replace", env={**os.environ, "UBSAN_OPTIONS": "print_stacktrace=1"})


def minimize(name: str) -> None:
    corpus, less = HERE / "corpus" / name, BUILD / "less" / name
    less.mkdir(parents=True, exist_ok=True)
    subprocess.run([PROGRAMS / f"fuzz_{name}", "-merge=1", less, corpus, BUILD / "found" / name], check=True, capture_output=True)
    for file in less.iterdir():
        (corpus / file.name).write_bytes(file.read_bytes())


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=int, default=600)
    parser.add_argument("--minimize", action="store_true")
    parser.add_argument("names", nargs="*", choices=[*NAMES, []])
    options = parser.parse_args()
    worst = 0
    for name in options.names or NAMES:
        done = fuzz(name, f"-max_total_time={options.seconds}")
        figures = [line.split()[-1] for line in done.stderr.splitlines() if "number_of_executed_units" in line]
        print(f"{name}: {figures[0] if figures else '?'} inputs, exit {done.returncode}", flush=True)
        if done.returncode != 0:
            print(done.stderr[-4000:])
        elif options.minimize:
            minimize(name)
        worst = max(worst, abs(done.returncode))
    return 1 if worst else 0


if __name__ == "__main__":
    sys.exit(main())
