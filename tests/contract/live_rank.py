# SPDX-License-Identifier: Apache-2.0
"""One engine process of the live test: publishes known values through the product's own writer until it is told to end.

argv: stats folder, release, rank, ranks, and maybe a JSON file of orders: header fields that all ranks publish otherwise from now on
("grow": by how much a counter grows each publication). The k-th publication holds k steps of known routing and calls. Expert rank r gets r + 1 parts of the
tokens in every layer, so its load relative to the mean is (r + 1) / ((ranks + 1) / 2) over any span of time.
"""

from __future__ import annotations

import json
import signal
import sys
import time
from array import array
from pathlib import Path

from kdtree_patch import stats_format as f
from kdtree_patch.stats import StatsWriter

LAYERS, EXPERTS_PER_RANK, TOP_K, FIRST_LAYER = 3, 2, 2, 1
PEAK = 24  # assignments of a step's fullest rank


def header(release: str, rank: int, ranks: int, k: int) -> dict[str, object]:
    """The header's values at publication k."""
    handed_back = [0] * f.MAX_REASONS
    handed_back[f.BACK_MASK] = k
    tokens = sum(parts(ranks)) // TOP_K
    compares = 1000 + rank + 10 * k
    return {
        "tp_rank": rank, "tp_size": ranks, "moe_ep_rank": rank, "moe_ep_size": ranks, "device_name": "cpu",
        "device_uuid": f"GPU-fa4e0000-0000-0000-0000-{rank:012d}",
        "release_id": release, "engine_version": "0.5.17", "torch_version": "2.11.0",
        "patch_state": f.ACTIVE, "mode": f.VALIDATE, "control_generation": 1, "sort_state": 1, "graphs": 1,
        "calls_kernel": 2 * k, "calls_engine": 61 * k, "handed_back": handed_back,
        "compares": compares, "mismatches": 0, "max_abs": 0.001 * (rank + 1), "max_ulp": 1.5,
        "sum_mean_ulp": 0.1 * compares, "max_mean_ulp": 0.13, "longest_prefix": 65536 + rank,
        "kv_pairs": 100, "kv_contiguous_pairs": 90 + rank,
        "moe_layers": LAYERS, "moe_experts": EXPERTS_PER_RANK * ranks, "moe_top_k": TOP_K, "moe_first_layer": FIRST_LAYER,
        "moe_steps": k, "moe_tokens": tokens * k,
    }


def parts(ranks: int) -> list[int]:
    """Assignments of one step and layer to each expert: 2 x (r + 1) to each expert of rank r."""
    return [2 * (expert // EXPERTS_PER_RANK + 1) for expert in range(EXPERTS_PER_RANK * ranks)]


def sections(ranks: int, k: int) -> list[tuple[int, int, int, array]]:
    """Routing counters at publication k: two layer steps each, one of which uses all experts and one
    none; rank 0 idles in one of them. The last rank has most in one, 24 assignments, and the one before it in the other."""
    return [
        (f.SECTION_EXPERT_TOKENS, LAYERS, EXPERTS_PER_RANK * ranks, array("Q", [k * part for part in parts(ranks)] * LAYERS)),
        (f.SECTION_UNIQUE_EXPERTS, LAYERS, 1, array("Q", [k * EXPERTS_PER_RANK * ranks] * LAYERS)),
        (f.SECTION_LAYER_STEPS, LAYERS, 1, array("Q", [2 * k] * LAYERS)),
        (f.SECTION_IDLE_RANKS, LAYERS, ranks, array("Q", ([k] + [0] * (ranks - 1)) * LAYERS)),
        (f.SECTION_PEAKS, LAYERS, 1, array("Q", [2 * PEAK * k] * LAYERS)),
        (f.SECTION_STRAGGLERS, LAYERS, ranks, array("Q", ([0] * (ranks - 2) + [k * f.STRAGGLER_SHARE] * 2) * LAYERS)),
        (f.SECTION_PASS_ROWS, 1, 2, array("Q", [sum(parts(ranks)) // TOP_K // 2, 2 * k])),
    ]


def ordered(orders: Path | None, k: int) -> dict[str, object]:
    """Header fields by order: {"mismatches": 3, "handed_back": {"16": 50}}; hand-backs grow by so many a publication."""
    if orders is None or not orders.exists():
        return {}
    fields = json.loads(orders.read_text())
    if "handed_back" in fields:
        counts = [0] * f.MAX_REASONS
        for reason, growth in fields["handed_back"].items():
            counts[int(reason)] = growth * k
        fields["handed_back"] = counts
    return fields


def main() -> None:
    folder, release, rank, ranks = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    orders = Path(sys.argv[5]) if len(sys.argv) > 5 else None
    writer = StatsWriter(folder)
    k = 0
    while True:
        writer.publish({**header(release, rank, ranks, k), **ordered(orders, k)}, {1: (900 + rank + 10 * k, 2000), 4: (100, 200)}, sections(ranks, k))
        k += 1
        time.sleep(0.2)


if __name__ == "__main__":
    main()
