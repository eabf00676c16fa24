# SPDX-License-Identifier: Apache-2.0
"""Times verify_attn, split and combine together, by CUDA-graph replay; writes JSON.

    python bench_verify.py --lib PATH --out FILE.json [--commit HASH] [--quick] [--nsplit N]

Microseconds per call = median over 15 replays of a graph of calls, divided by their number. Slots are random; the calls
cycle over KV sets of together at least 160 MB, more than the L2 of any GPU this runs on, so KV comes from DRAM.
"""

import argparse
import json
import statistics
import sys
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "python"))
from kdtree_kernel.ops import load  # noqa: E402

HEADS, ROW_BYTES, COLD_BYTES, CALLS, REPLAYS = 8, 1152, 160 * 10**6, 20, 15
FLOP_PER_KEY_AND_ROW = 2 * (576 + 512)

GOALS = {  # (batch, context, n): microseconds, the table of the design on an H200
    (1, 1024, 9): 8, (1, 4096, 9): 10, (1, 16384, 9): 18, (1, 65536, 9): 40, (1, 185000, 9): 85,
    (1, 65536, 16): 55, (1, 65536, 33): 90, (1, 65536, 65): 165, (4, 65536, 9): 105, (16, 16384, 9): 105,
}


def prepare(batch: int, context: int, n: int) -> list[dict[str, torch.Tensor]]:
    """Inputs of as many calls as are needed to read COLD_BYTES before a KV row is read again."""
    keys, tokens = batch * context, batch * n
    sets = max(2, -(-COLD_BYTES // (keys * ROW_BYTES)))
    pool = torch.randn(sets * keys + 1, 1, 576, device="cuda", dtype=torch.bfloat16)
    slots = torch.randperm(sets * keys, device="cuda").view(sets, keys) + 1
    shared = {
        "q": torch.randn(tokens, HEADS, 576, device="cuda", dtype=torch.bfloat16),
        "k_draft": torch.randn(tokens, 1, 576, device="cuda", dtype=torch.bfloat16),
        "kv_pool": pool,
        "qo_indptr": torch.arange(0, tokens + 1, n, device="cuda"),
        "kv_indptr": torch.arange(0, keys + 1, context, device="cuda", dtype=torch.int32),
        "custom_mask": torch.ones(batch * n * (context + n), device="cuda", dtype=torch.uint8),
        "mask_indptr": torch.arange(0, batch + 1, device="cuda") * n * (context + n),
    }
    return [shared | {"kv_indices": slots[i].contiguous()} for i in range(sets)]


def time_call(batch: int, context: int, n: int, nsplit: int) -> float:
    """Microseconds of one call."""
    sets = prepare(batch, context, n)
    out = torch.empty(batch * n, HEADS, 512, device="cuda", dtype=torch.bfloat16)
    size = torch.ops.kdtree.verify_attn_workspace_bytes(batch, n, HEADS, out, nsplit)
    workspace = torch.empty(size, dtype=torch.uint8, device="cuda")
    calls = max(CALLS, len(sets)) // len(sets) * len(sets)

    def one(i: int) -> None:
        s = sets[i % len(sets)]
        torch.ops.kdtree.verify_attn(s["q"], s["k_draft"], out, s["kv_pool"], s["qo_indptr"], s["kv_indptr"],
                                     s["kv_indices"], s["custom_mask"], s["mask_indptr"], None, workspace, n,
                                     576**-0.5, nsplit=nsplit)

    one(0)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for i in range(calls):
            one(i)
    times = []
    for i in range(REPLAYS + 3):
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record()
        graph.replay()
        end.record()
        end.synchronize()
        if i >= 3:
            times.append(start.elapsed_time(end) * 1000 / calls)
    return statistics.median(times)


def main() -> None:
    """Command line; see the module's docstring."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--lib", required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--commit", default="unknown")
    parser.add_argument("--driver", default="unknown")
    parser.add_argument("--quick", action="store_true", help="three rows of the table only")
    parser.add_argument("--nsplit", type=int, default=0)
    options = parser.parse_args()
    load(options.lib)
    rows: list[dict[str, Any]] = []
    chosen = [(1, 1024, 9), (1, 65536, 9), (1, 65536, 65)] if options.quick else list(GOALS)
    for batch, context, n in chosen:
        us = time_call(batch, context, n, options.nsplit)
        keys = batch * (context + n)
        rows.append({
            "batch": batch, "context": context, "draft_tokens": n, "microseconds": round(us, 2),
            "goal_microseconds": GOALS[batch, context, n],
            "kv_gb_per_s": round(keys * ROW_BYTES / us / 1e3, 1),
            "tflop_per_s": round(keys * n * HEADS * FLOP_PER_KEY_AND_ROW / us / 1e6, 1),
        })
        print(f"bs {batch:3} context {context:7} n {n:3}: {us:8.1f} us (goal {GOALS[batch, context, n]:4}) "
              f"{rows[-1]['kv_gb_per_s']:7.0f} GB/s {rows[-1]['tflop_per_s']:6.0f} TFLOP/s", flush=True)
    report = {
        "what": "verify_attn, split + combine, bf16, 8 heads, page size 1, random slots, CUDA-graph replay",
        "gpu": torch.cuda.get_device_name(), "driver": options.driver, "torch": torch.__version__,
        "cuda": torch.version.cuda, "commit": options.commit, "nsplit": options.nsplit,
        "date": datetime.now(timezone.utc).isoformat(timespec="seconds"), "rows": rows,
    }
    options.out.write_text(json.dumps(report, indent=1) + "\n")


if __name__ == "__main__":
    main()
