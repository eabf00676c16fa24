# SPDX-License-Identifier: Apache-2.0
"""Writes the table of measured times in kernel/README.md from kernel/bench/results/verify-h200.json.

    python readme_table.py           rewrites the part between the two marks
    python readme_table.py --check   exit 1 if it is not what the JSON says
"""

import json
import sys
from pathlib import Path
from typing import Any

KERNEL = Path(__file__).resolve().parents[1]
RECORD = KERNEL / "bench" / "results" / "verify-h200.json"
BEGIN, END = "<!-- verify-h200.json, by tools/readme_table.py -->\n", "<!-- end -->\n"

GOALS = {  # (batch, context, n): microseconds on an H200, 8 heads, random slots
    (1, 1024, 9): 8, (1, 4096, 9): 10, (1, 16384, 9): 18, (1, 65536, 9): 40, (1, 185000, 9): 85,
    (1, 65536, 16): 55, (1, 65536, 33): 90, (1, 65536, 65): 165, (4, 65536, 9): 105, (16, 16384, 9): 105,
}
FLASHMLA = {  # measured in another run: page size 64, causal, Hopper-only instructions
    (1, 1024, 9): 14.4, (1, 4096, 9): 19.9, (1, 16384, 9): 30.7, (1, 65536, 9): 51.0, (1, 185000, 9): 96.3,
    (1, 65536, 16): 51.6, (1, 65536, 33): 77.8, (1, 65536, 65): 126, (4, 65536, 9): 118, (16, 16384, 9): 115,
}


def row(p: dict[str, Any]) -> str:
    """One line of the table; what was not measured is a dash."""
    key = (p["batch"], p["context"], p["n"])
    usual = p["heads"] == 8 and p["slots"] == "random" and "contexts" not in p
    goal, flashmla = (GOALS.get(key) if usual else None), (FLASHMLA.get(key) if usual else None)
    kind = "one long, others 1k" if "contexts" in p else p["slots"]
    triton = p["triton_us"]
    cells = [p["batch"], p["context"], p["n"], p["heads"], kind, f"**{p['us']:.1f}**", goal or "-", flashmla or "-",
             f"{triton:.0f}" if triton else "-", f"{triton / p['us']:.0f}" if triton else "-", f"{p['floor_us']:.1f}", p["bound"]]
    return "| " + " | ".join(str(cell) for cell in cells) + " |"


def table(record: dict[str, Any]) -> str:
    """The marked part of README."""
    ceiling = record["ceilings"]
    head = (f"{record['gpu']}, driver {record['driver']}, CUDA {record['cuda']}, {record['date'][:10]}, commit {record['commit']}; "
            f"ceilings of that run: {ceiling['read_gb_per_s']:.0f} GB/s read, {ceiling['matrix_tflop_per_s']:.0f} TFLOP/s in "
            "torch's bf16 product.\n\n")
    names = ["batch", "context", "n", "heads", "slots", "us", "goal", "FlashMLA", "SGLang's Triton", "times faster", "floor us", "bound"]
    lines = ["| " + " | ".join(names) + " |", "|" + "---|" * len(names), *(row(p) for p in record["points"])]
    return head + "\n".join(lines) + "\n"


def replaced(readme: str, record: dict[str, Any]) -> str:
    """README with the table of the record. ValueError if a mark is missing."""
    if BEGIN not in readme or END not in readme:
        raise ValueError("kernel/README.md has lost the marks of its table")
    before, rest = readme.split(BEGIN, 1)
    return before + BEGIN + table(record) + END + rest.split(END, 1)[1]


def main() -> int:
    """Command line; see the module's docstring."""
    readme = KERNEL / "README.md"
    text = readme.read_text()
    wanted = replaced(text, json.loads(RECORD.read_text()))
    if "--check" in sys.argv[1:]:
        if wanted != text:
            print("kernel/README.md: the table is not what verify-h200.json says; run kernel/tools/readme_table.py", file=sys.stderr)
        return int(wanted != text)
    readme.write_text(wanted)
    return 0


if __name__ == "__main__":
    sys.exit(main())
