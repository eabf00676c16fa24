# SPDX-License-Identifier: Apache-2.0
"""Writes the tables of kernel/README.md from the records in kernel/bench/results.

    python readme_table.py           rewrites what is between the marks
    python readme_table.py --check   exit 1 if it is not what the records say
"""

import json
import sys
from pathlib import Path
from typing import Any

from predict_sm120 import predict

KERNEL = Path(__file__).resolve().parents[1]
RESULTS = KERNEL / "bench" / "results"
MARK, END = "<!-- {} -->\n", "<!-- end -->\n"

GOALS = {  # (batch, context, n): microseconds on an H200, 8 heads, random slots
    (1, 1024, 9): 8, (1, 4096, 9): 10, (1, 16384, 9): 18, (1, 65536, 9): 40, (1, 185000, 9): 85,
    (1, 65536, 16): 55, (1, 65536, 33): 90, (1, 65536, 65): 165, (4, 65536, 9): 105, (16, 16384, 9): 105,
}
FLASHMLA = {  # measured in another run: page size 64, causal, Hopper-only instructions
    (1, 1024, 9): 14.4, (1, 4096, 9): 19.9, (1, 16384, 9): 30.7, (1, 65536, 9): 51.0, (1, 185000, 9): 96.3,
    (1, 65536, 16): 51.6, (1, 65536, 33): 77.8, (1, 65536, 65): 126, (4, 65536, 9): 118, (16, 16384, 9): 115,
}


def row(p: dict[str, Any]) -> str:
    """One line of the table; what was not measured is a dash, as are goal and peer of an e4m3 pool, which has none."""
    key = (p["batch"], p["context"], p["n"])
    usual = p["kv"] == "bf16" and p["heads"] == 8 and p["slots"] == "random" and "contexts" not in p
    goal, flashmla = (GOALS.get(key) if usual else None), (FLASHMLA.get(key) if usual else None)
    kind = "one long, others 1k" if "contexts" in p else p["slots"]
    triton = p["triton_us"]
    cells = [p["batch"], p["context"], p["n"], p["heads"], kind, f"**{p['us']:.1f}**", goal or "-", flashmla or "-",
             f"{triton:.0f}" if triton else "-", f"{triton / p['us']:.0f}" if triton else "-", f"{p['floor_us']:.1f}", p["bound"]]
    return "| " + " | ".join(str(cell) for cell in cells) + " |"


def lines(names: list[str], rows: list[str]) -> str:
    """A Markdown table."""
    return "\n".join(["| " + " | ".join(names) + " |", "|" + "---|" * len(names), *rows]) + "\n"


def verify_table(record: dict[str, Any]) -> str:
    """All points of the benchmark, beside goals and peers."""
    ceiling = record["ceilings"]
    head = (f"{record['gpu']}, driver {record['driver']}, CUDA {record['cuda']}, {record['date'][:10]}, commit {record['commit']}; "
            f"ceilings of that run: {ceiling['read_gb_per_s']:.0f} GB/s read, {ceiling['matrix_tflop_per_s']:.0f} TFLOP/s in "
            "torch's bf16 product.\n\n")
    names = ["batch", "context", "n", "heads", "slots", "us", "goal", "FlashMLA", "SGLang's Triton", "times faster", "floor us", "bound"]
    return head + lines(names, [row(p) for p in record["points"]])


def attempts_table(record: dict[str, Any]) -> str:
    """All attempts, microseconds a call at n 9."""
    def cells(v: dict[str, Any]) -> str:
        times = [f"{v['us'][key]:.1f}" if key in v["us"] else "-" for key in ("1x1024x9", "1x65536x9", "1x185000x9")]
        return "| " + " | ".join([v["run"], v["name"], *times, f"{v['us_per_step']:.2f}"]) + " |"

    return lines(["run", "variant", "1k", "65 536", "185k", "us a step"], [cells(v) for v in record["variants"]])


def prediction_table(attempts: dict[str, Any]) -> str:
    """What the model says for sm_120."""
    rows = []
    for context, n in ((1024, 9), (4096, 9), (16_384, 9), (65_536, 9), (185_000, 9), (65_536, 16), (65_536, 33), (65_536, 65)):
        p = predict(attempts, context, n)
        rows.append(f"| {context} | {n} | {p['us']:.0f} | {p['bound']} |")
    return lines(["context", "n", "us, predicted", "bound"], rows)


def replaced(readme: str) -> str:
    """README with the tables of the records. ValueError if a mark is missing."""
    attempts = json.loads((RESULTS / "attempts-h200.json").read_text())
    tables = {**{name: verify_table(json.loads((RESULTS / name).read_text())) for name in ("verify-h200.json", "verify-h200-fp8.json")},
              "attempts-h200.json": attempts_table(attempts), "sm_120, predicted": prediction_table(attempts)}
    for name, text in tables.items():
        begin = MARK.format(name)
        if begin not in readme or END not in readme.split(begin, 1)[1]:
            raise ValueError(f"kernel/README.md has lost the marks of its table {name}")
        before, rest = readme.split(begin, 1)
        readme = before + begin + text + END + rest.split(END, 1)[1]
    return readme


def main() -> int:
    """Command line; see the module's docstring."""
    readme = KERNEL / "README.md"
    text = readme.read_text()
    wanted = replaced(text)
    if "--check" in sys.argv[1:]:
        if wanted != text:
            print("kernel/README.md: a table is not what bench/results says; run kernel/tools/readme_table.py", file=sys.stderr)
        return int(wanted != text)
    readme.write_text(wanted)
    return 0


if __name__ == "__main__":
    sys.exit(main())
