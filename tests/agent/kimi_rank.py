# SPDX-License-Identifier: Apache-2.0
"""A process that publishes as one rank of Kimi K2's size would: 60 MoE layers, 384 experts, top 8, tokens drawn without replacement.

argv: stats folder, rank, ranks, EP size. Expert e of layer l is drawn with a weight that differs by layer, so that the
load is uneven in a way that a picture shows. Publishes five times a second until it is told to end.
"""
from __future__ import annotations

import random
import signal
import sys
import time
from array import array

from kdtree_patch import stats_format as f
from kdtree_patch.stats import StatsWriter

LAYERS, EXPERTS, TOP_K, FIRST = 60, 384, 8, 1
TOKENS_A_STEP, STEPS = 9, 4  # a draft of nine, four steps a publication


def weights(layer: int, ranks: int) -> list[float]:
    """Of each expert; the favourite rank moves with the layer."""
    share = EXPERTS // ranks
    return [3.0 if expert // share == (layer * 5 // 7) % ranks and layer % 3 else 1.0 for expert in range(EXPERTS)]


class Router:
    def __init__(self, ranks: int) -> None:
        self.random = random.Random(5)
        self.weights = [weights(layer, ranks) for layer in range(LAYERS)]
        self.tokens = [array("Q", bytes(8 * EXPERTS)) for _ in range(LAYERS)]
        self.unique = array("Q", bytes(8 * LAYERS))
        self.idle = array("Q", bytes(8 * LAYERS * ranks))
        self.peaks = array("Q", bytes(8 * LAYERS))
        self.stragglers = array("Q", bytes(8 * LAYERS * ranks))
        self.ranks, self.steps = ranks, 0

    def step(self) -> None:
        self.steps += 1
        for layer in range(LAYERS):
            used: set[int] = set()
            loads = [0] * self.ranks
            for _ in range(TOKENS_A_STEP):
                chosen: set[int] = set()
                while len(chosen) < TOP_K:
                    chosen.update(self.random.choices(range(EXPERTS), self.weights[layer], k=TOP_K - len(chosen)))
                for expert in chosen:
                    self.tokens[layer][expert] += 1
                    loads[expert // (EXPERTS // self.ranks)] += 1
                used |= chosen
            self.unique[layer] += len(used)
            self.peaks[layer] += max(loads)
            for rank, load in enumerate(loads):
                self.idle[layer * self.ranks + rank] += load == 0
                self.stragglers[layer * self.ranks + rank] += (load == max(loads)) * f.STRAGGLER_SHARE // loads.count(max(loads))


def main() -> None:
    folder, rank, ranks, ep_size = sys.argv[1], *map(int, sys.argv[2:5])
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    writer = StatsWriter(folder)
    router = Router(ranks)
    while True:
        if rank == 0:  # it speaks for all; the others would count the same
            for _ in range(STEPS):
                router.step()
        steps = max(1, router.steps)
        joined = array("Q")
        for layer in router.tokens:
            joined.extend(layer)
        sections = [(f.SECTION_EXPERT_TOKENS, LAYERS, EXPERTS, joined), (f.SECTION_UNIQUE_EXPERTS, LAYERS, 1, router.unique),
                    (f.SECTION_LAYER_STEPS, LAYERS, 1, array("Q", [steps] * LAYERS)), (f.SECTION_PEAKS, LAYERS, 1, router.peaks),
                    (f.SECTION_IDLE_RANKS, LAYERS, ranks, router.idle), (f.SECTION_STRAGGLERS, LAYERS, ranks, router.stragglers),
                    (f.SECTION_PASS_ROWS, 1, 2, array("Q", [TOKENS_A_STEP, router.steps]))]
        calls = 61 * steps
        writer.publish({"tp_rank": rank, "tp_size": ranks, "moe_ep_rank": rank if ep_size > 1 else 0, "moe_ep_size": ep_size,
                        "device_name": "NVIDIA RTX PRO 6000 Blackwell", "device_uuid": f"GPU-fa4e0000-0000-0000-0000-{rank:012d}",
                        "release_id": "0.1.0-3f9c2a7b", "engine_version": "0.5.17", "torch_version": "2.11.0",
                        "patch_state": f.ACTIVE, "mode": f.VALIDATE, "control_generation": 4, "graphs": 1, "calls_engine": calls,
                        "compares": calls, "max_abs": 0.0039, "max_ulp": 1.5, "sum_mean_ulp": 0.1 * calls, "max_mean_ulp": 0.13, "longest_prefix": 65536,
                        "moe_layers": LAYERS, "moe_experts": EXPERTS, "moe_top_k": TOP_K, "moe_first_layer": FIRST,
                        "moe_steps": router.steps, "moe_tokens": TOKENS_A_STEP * router.steps}, {1: (calls, calls)}, sections)
        time.sleep(0.2)


if __name__ == "__main__":
    main()
