# SPDX-License-Identifier: Apache-2.0
"""Times verify_attn, split and combine together, by CUDA-graph replay, beside SGLang's own Triton kernel.

    python -m kdtree_kernel.bench --lib PATH [--json] [--out FILE.json] [--only B:CONTEXT:N,...] [--no-triton]
    python -m kdtree_kernel.bench --lib PATH --sweep nsplit

Microseconds per call = median over replays of a graph of calls, divided by their number. KV rows are in bf16, or in fp8 with
--kv fp8_e4m3; the calls cycle over KV sets of together at least 160 MB, more than the L2 of any GPU this runs on, so KV
comes from DRAM. The
ceilings are measured in the same run with torch: reading a large tensor, and a large matrix product.

`floor_us` is the time that the ceilings leave: each KV row read once, each row's 2176 FLOP a key. `bound` is `dram` or
`matrix`, whichever floor is higher, if the measured time is within twice of it, else `latency`.
Exit 0, or 1 with one line if there is no GPU or the library can't be loaded.
"""

import argparse
import importlib
import json
import statistics
import subprocess
import sys
from collections.abc import Callable
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import torch

from kdtree_kernel.ops import load

QK_DIM, V_DIM = 576, 512
KV = {"bf16": (torch.bfloat16, 1152), "fp8_e4m3": (torch.float8_e4m3fn, 576)}  # type, bytes a row
COLD_BYTES = 160 * 10**6
FLOP_PER_KEY_AND_ROW = 2 * (QK_DIM + V_DIM)
SCALE = QK_DIM**-0.5
TRITON_MODULES = ("sglang.kernels.ops.attention.extend_attention", "sglang.srt.layers.attention.triton_ops.extend_attention")

Point = dict[str, Any]


def point(batch: int, context: int, n: int, heads: int = 8, slots: str = "random", contexts: list[int] | None = None) -> Point:
    """What is to be timed. `contexts`, if given, are the requests' own lengths and `context` the longest."""
    return {"kv": "bf16", "heads": heads, "batch": batch, "n": n, "context": context, "slots": slots,
            **({"contexts": contexts} if contexts else {})}


MIXED = [185_000] + [1024] * 15
DEFAULT_POINTS = [
    *(point(1, context, 9) for context in (1024, 4096, 16_384, 65_536, 185_000)),
    *(point(1, 65_536, n) for n in (16, 33, 65)), point(4, 65_536, 9), point(16, 16_384, 9), point(1, 16_384, 1),
    point(1, 65_536, 9, slots="contiguous"), point(1, 185_000, 9, slots="contiguous"), point(1, 65_536, 9, heads=16),
    point(16, 185_000, 9, contexts=MIXED), point(64, 1024, 9), point(1, 262_144, 9),
]


def make_sets(p: Point) -> list[dict[str, torch.Tensor]]:
    """Inputs of as many calls as are needed to read COLD_BYTES before a KV row is read again."""
    contexts = p.get("contexts") or [p["context"]] * p["batch"]
    n, keys, tokens = p["n"], sum(contexts), p["batch"] * p["n"]
    dtype, row_bytes = KV[p["kv"]]
    sets = max(2, -(-COLD_BYTES // (keys * row_bytes)))
    order = torch.randperm(sets * keys, device="cuda") if p["slots"] == "random" else torch.arange(sets * keys, device="cuda")
    pool = torch.randn(sets * keys + 1, 1, QK_DIM, device="cuda", dtype=torch.bfloat16).to(dtype)
    k_draft = torch.randn(tokens, 1, QK_DIM, device="cuda", dtype=torch.bfloat16)
    mask_indptr = torch.tensor([0] + [n * (c + n) for c in contexts], device="cuda").cumsum(0)
    shared = {
        "q": torch.randn(tokens, p["heads"], QK_DIM, device="cuda", dtype=torch.bfloat16),
        "k_draft": k_draft, "v_draft": k_draft[..., :V_DIM].contiguous(), "kv_pool": pool,
        "qo_indptr": torch.arange(0, tokens + 1, n, device="cuda"),
        "kv_indptr": torch.tensor([0] + contexts, device="cuda").cumsum(0).to(torch.int32),
        "custom_mask": torch.ones(int(mask_indptr[-1]), device="cuda", dtype=torch.uint8), "mask_indptr": mask_indptr,
    }
    return [shared | {"kv_indices": part.contiguous()} for part in (order + 1).view(sets, keys)]


def replay_us(call: Callable[[int], None], calls: int, replays: int) -> float:
    """Median microseconds of one of `calls` calls in a graph."""
    call(0)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for i in range(calls):
            call(i)
    times = []
    for i in range(replays + 2):
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record()
        graph.replay()
        end.record()
        end.synchronize()
        if i >= 2:
            times.append(start.elapsed_time(end) * 1000 / calls)
    return statistics.median(times)


def kernel_us(p: Point, sets: list[dict[str, torch.Tensor]], nsplit: int = 0, calls: int = 20, replays: int = 15) -> float:
    """Microseconds of one call of the op."""
    q = sets[0]["q"]
    out = torch.empty(q.size(0), p["heads"], V_DIM, device="cuda", dtype=q.dtype)
    size = torch.ops.kdtree.verify_attn_workspace_bytes(p["batch"], p["n"], p["heads"], out, nsplit)
    workspace = torch.empty(size, dtype=torch.uint8, device="cuda")

    def call(i: int) -> None:
        s = sets[i % len(sets)]
        torch.ops.kdtree.verify_attn(q, s["k_draft"], out, s["kv_pool"], s["qo_indptr"], s["kv_indptr"], s["kv_indices"],
                                     s["custom_mask"], s["mask_indptr"], None, workspace, p["n"], SCALE, nsplit=nsplit)

    return replay_us(call, max(calls, len(sets)) // len(sets) * len(sets), replays)


def triton_us(p: Point, sets: list[dict[str, torch.Tensor]], forward: Callable[..., Any]) -> float:
    """Microseconds of one call of SGLang's extend_attention_fwd, as its backend calls it in target verify."""
    q = sets[0]["q"]
    out = torch.empty(q.size(0), p["heads"], V_DIM, device="cuda", dtype=q.dtype)

    def call(i: int) -> None:
        s = sets[i % len(sets)]
        forward(q, s["k_draft"], s["v_draft"], out, s["kv_pool"], s["kv_pool"][..., :V_DIM], s["qo_indptr"], s["kv_indptr"],
                s["kv_indices"], s["custom_mask"], True, s["mask_indptr"], p["n"], 1.0, 1.0, SCALE)

    return replay_us(call, 2, 3)


def find_triton() -> tuple[Callable[..., Any] | None, str]:
    """SGLang's kernel and where it is from; None and why not."""
    reason = ""
    for name in TRITON_MODULES:
        try:
            return importlib.import_module(name).extend_attention_fwd, name
        except Exception as error:  # noqa: BLE001  an engine's import can fail in any way; the bench goes on without it
            reason = reason or f"{type(error).__name__}: {error}"
    return None, reason


def ceilings() -> dict[str, float]:
    """GB/s of reading 4 GB, TFLOP/s of a bf16 product of two random 8192 x 8192 matrices."""
    large = torch.ones(2**30, dtype=torch.float32, device="cuda")
    read = replay_us(lambda _: large.sum(), 2, 5)
    a, b = (torch.randn(8192, 8192, dtype=torch.bfloat16, device="cuda") for _ in range(2))
    c = torch.empty_like(a)
    product = replay_us(lambda _: torch.mm(a, b, out=c), 2, 5)
    return {"read_gb_per_s": round(large.nbytes / read / 1e3, 1), "matrix_tflop_per_s": round(2 * 8192**3 / product / 1e6, 1)}


def rates(p: Point, us: float, ceiling: dict[str, float]) -> dict[str, Any]:
    """Derived figures of a point: work done a second, floor and bound."""
    keys = sum(p.get("contexts") or [p["context"]] * p["batch"]) + p["batch"] * p["n"]
    kv_bytes, flop = keys * KV[p["kv"]][1], keys * p["n"] * p["heads"] * FLOP_PER_KEY_AND_ROW
    dram_us, matrix_us = kv_bytes / ceiling["read_gb_per_s"] / 1e3, flop / ceiling["matrix_tflop_per_s"] / 1e6
    floor = max(dram_us, matrix_us)
    bound = "latency" if floor < us / 2 else "dram" if dram_us >= matrix_us else "matrix"
    return {"floor_us": round(floor, 1), "bound": bound, "kv_gb_per_s": round(kv_bytes / us / 1e3, 1),
            "tflop_per_s": round(flop / us / 1e6, 1)}


def gpu_facts() -> dict[str, Any]:
    """GPU, driver, CUDA, and the clocks right after load (None where nvidia-smi is missing)."""
    facts: dict[str, Any] = {"gpu": torch.cuda.get_device_name(), "driver": None, "cuda": torch.version.cuda,
                             "multiprocessors": torch.cuda.get_device_properties(0).multi_processor_count, "clocks_mhz": None}
    query = ["nvidia-smi", "--query-gpu=driver_version,clocks.sm,clocks.mem", "--format=csv,noheader,nounits",
             f"--id={torch.cuda.current_device()}"]
    try:
        driver, sm, memory = subprocess.run(query, capture_output=True, text=True, check=True).stdout.strip().split(", ")
        facts |= {"driver": driver, "clocks_mhz": {"sm": int(sm), "memory": int(memory)}}
    except (OSError, subprocess.CalledProcessError, ValueError):
        pass
    return facts


def table(report: dict[str, Any]) -> str:
    """The points as text."""
    lines = [f"{report['gpu']}, driver {report['driver']}, CUDA {report['cuda']}, clocks {report['clocks_mhz']}; "
             f"ceilings {report['ceilings']['read_gb_per_s']:.0f} GB/s, {report['ceilings']['matrix_tflop_per_s']:.0f} TFLOP/s; "
             f"SGLang's kernel: {report['triton']}",
             f"{'batch':>5} {'context':>8} {'n':>3} {'heads':>5} {'slots':>10} {'us':>9} {'floor':>7} {'GB/s':>6} {'%':>4} "
             f"{'TFLOP/s':>7} {'%':>4} {'bound':>7} {'Triton us':>10} {'x':>6}"]
    for p in report["points"]:
        triton = p["triton_us"]
        lines.append(
            f"{p['batch']:5} {p['context']:8} {p['n']:3} {p['heads']:5} {'mixed' if 'contexts' in p else p['slots']:>10} "
            f"{p['us']:9.1f} {p['floor_us']:7.1f} {p['kv_gb_per_s']:6.0f} "
            f"{100 * p['kv_gb_per_s'] / report['ceilings']['read_gb_per_s']:4.0f} {p['tflop_per_s']:7.0f} "
            f"{100 * p['tflop_per_s'] / report['ceilings']['matrix_tflop_per_s']:4.0f} {p['bound']:>7} "
            + (f"{triton:10.0f} {triton / p['us']:6.0f}" if triton else f"{'-':>10} {'-':>6}"))
    return "\n".join(lines)


SWEPT = [point(1, 1024, 9), point(1, 16_384, 9), point(1, 65_536, 9), point(4, 65_536, 9), point(1, 65_536, 33)]


def chosen_nsplit(p: Point, multiprocessors: int) -> int:
    """What the chooser takes (make_shape in kernel/src/verify_attn_shape.h)."""
    return max(1, multiprocessors // -(-p["n"] * p["heads"] // 40))


def sweep_point(p: Point, multiprocessors: int, time_us: Callable[[int], float]) -> dict[str, Any]:
    """Times the useful numbers of splits, the chooser's among them. `right`: it is within 5 % of the best."""
    chosen = chosen_nsplit(p, multiprocessors)
    counts = {chosen, *(multiprocessors // d for d in (1, 2, 3, 4, 6, 8, 12, 16, 24)), *([1] if p["context"] < 5000 else [])}
    tried = {n: time_us(n) for n in sorted(counts - {0})}
    best = min(tried, key=tried.__getitem__)
    return p | {"chosen_nsplit": chosen, "chosen_us": round(tried[chosen], 2), "best_nsplit": best,
                "best_us": round(tried[best], 2), "right": tried[chosen] <= 1.05 * tried[best],
                "us": {n: round(us, 2) for n, us in tried.items()}}


def sweep_table(report: dict[str, Any]) -> str:
    """The sweep as text, and what to do."""
    lines = [f"{report['gpu']}, driver {report['driver']}, CUDA {report['cuda']}",
             f"{'batch':>5} {'context':>8} {'n':>3} {'chosen':>7} {'us':>9} {'best':>5} {'us':>9}  chooser"]
    for r in report["rows"]:
        lines.append(f"{r['batch']:5} {r['context']:8} {r['n']:3} {r['chosen_nsplit']:7} {r['chosen_us']:9.1f} "
                     f"{r['best_nsplit']:5} {r['best_us']:9.1f}  {'right' if r['right'] else 'wrong'}")
    wrong = [r for r in report["rows"] if not r["right"]]
    if not wrong:
        return "\n".join([*lines, "The chooser is right here: leave KDTREE_NSPLIT empty."])
    common = set.intersection(*({n for n, us in r["us"].items() if us <= 1.05 * r["best_us"]} for r in report["rows"]))
    advice = (f"KDTREE_NSPLIT={min(common)} is within 5 % of the best in every row." if common else
              "No single KDTREE_NSPLIT, which holds for all shapes, is within 5 % of the best in every row.")
    return "\n".join([*lines, f"The chooser is wrong in {len(wrong)} of {len(report['rows'])} rows. {advice}"])


def sweep_nsplit(kv: str) -> dict[str, Any]:
    """sweep_point() for a few shapes; progress goes to stderr."""
    facts, rows = gpu_facts(), []
    for p in SWEPT:
        p = p | {"kv": kv}
        sets = make_sets(p)
        rows.append(sweep_point(p, facts["multiprocessors"], lambda n: kernel_us(p, sets, n)))
        print(f"batch {p['batch']}, context {p['context']}, n {p['n']}: {rows[-1]['best_us']} us", file=sys.stderr, flush=True)
        del sets
    return facts | {"sweep": "nsplit", "rows": rows}


def run(points: list[Point], with_triton: bool, commit: str) -> dict[str, Any]:
    """The report: facts, ceilings, points; progress goes to stderr."""
    forward, triton = find_triton() if with_triton else (None, "not asked for")
    report: dict[str, Any] = {"ceilings": ceilings(), "triton": triton, "commit": commit,
                              "date": datetime.now(timezone.utc).isoformat(timespec="seconds"), "points": []}
    for p in points:
        sets = make_sets(p)
        us = kernel_us(p, sets)
        theirs = round(triton_us(p, sets, forward), 1) if forward else None
        report["points"].append(p | {"us": round(us, 2), "triton_us": theirs} | rates(p, us, report["ceilings"]))
        print(f"{p['batch']} x {p['context']}, n {p['n']}: {us:.1f} us", file=sys.stderr, flush=True)
        del sets
    return gpu_facts() | report


def parse_points(text: str) -> list[Point]:
    """'1:65536:9,4:65536:9' to points; ValueError with the part that is wrong."""
    points = []
    for part in text.split(","):
        try:
            batch, context, n = (int(x) for x in part.split(":"))
        except ValueError:
            raise ValueError(f"--only: {part!r} is not BATCH:CONTEXT:N") from None
        if min(batch, context, n) < 1 or n > 128:
            raise ValueError(f"--only: {part!r} is out of range: all from 1, n up to 128")
        points.append(point(batch, context, n))
    return points


def main() -> int:
    """Command line; see the module's docstring."""
    parser = argparse.ArgumentParser(prog="kdtree_kernel.bench", description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--lib", required=True, help="path of libkdtree_torch.so")
    parser.add_argument("--json", action="store_true", help="print the report as JSON, not as a table")
    parser.add_argument("--out", type=Path, help="write the report to this file too")
    parser.add_argument("--only", help="points to time instead of the usual ones: BATCH:CONTEXT:N, comma-separated")
    parser.add_argument("--no-triton", action="store_true", help="leave SGLang's kernel out")
    parser.add_argument("--kv", choices=sorted(KV), default="bf16", help="type of the KV pool")
    parser.add_argument("--sweep", choices=("nsplit",), help="find the best number of splits instead")
    parser.add_argument("--commit", default="unknown", help="for the report")
    options = parser.parse_args()
    try:
        points = parse_points(options.only) if options.only else DEFAULT_POINTS
        if not torch.cuda.is_available():
            raise RuntimeError("no GPU that torch can use; nothing to time")
        load(options.lib)
        points = [p | {"kv": options.kv} for p in points]
        report = sweep_nsplit(options.kv) if options.sweep else run(points, not options.no_triton, options.commit)
    except (OSError, RuntimeError, ValueError) as error:
        print(f"kdtree_kernel.bench: {error}".splitlines()[0], file=sys.stderr)
        return 1
    text = json.dumps(report, indent=1)
    if options.out:
        options.out.write_text(text + "\n")
    if options.json:
        print(text)
    else:
        print(sweep_table(report) if options.sweep else table(report))
    return 0


if __name__ == "__main__":
    sys.exit(main())
