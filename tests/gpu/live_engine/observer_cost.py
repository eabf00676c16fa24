# SPDX-License-Identifier: Apache-2.0
"""What counting the router's choices costs a step: one graph of 61 layers' counts and the step's begin and end, against an
empty one, by replay. Needs the op loaded (`load`)."""
import statistics

LAYERS, EXPERTS, TOP_K, TOKENS, REPLAYS = 61, 384, 8, 9, 50


def _replay_us(graph: object, torch: object) -> float:
    times = []
    for i in range(REPLAYS + 5):
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record()
        graph.replay()
        end.record()
        end.synchronize()
        if i >= 5:
            times.append(1000 * start.elapsed_time(end))
    return statistics.median(times)


def measure(library: str, python_path: str) -> dict:
    """Microseconds a step. Errors: AttributeError where the library has no observer."""
    import sys

    import torch

    sys.path.insert(0, python_path)
    from kdtree_kernel.ops import load

    load(library)
    ops, shape = torch.ops.kdtree, (256, EXPERTS, 1)
    ids = [torch.stack([torch.randperm(EXPERTS, device="cuda")[:TOP_K] for _ in range(TOKENS)]).int()
           for _ in range(LAYERS)]
    size = ops.moe_table_bytes(*shape, ids[0])
    table = torch.zeros(size, dtype=torch.uint8, device="cuda")
    copy = torch.zeros(size, dtype=torch.uint8, pin_memory=True)
    work = torch.zeros(TOKENS, 2048, device="cuda", dtype=torch.bfloat16)

    def step(observed: bool) -> None:
        if observed:
            ops.moe_begin(table, *shape, TOKENS)
        for layer in range(LAYERS):
            work.mul_(1.0)
            if observed:
                ops.moe_count(table, *shape, layer, ids[layer])
        if observed:
            ops.moe_end(table, *shape, copy, 0, LAYERS - 1)

    found = {}
    for name, observed in (("without_us", False), ("with_us", True)):
        step(observed)
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            step(observed)
        found[name] = round(_replay_us(graph, torch), 1)
    found["cost_us"] = round(found["with_us"] - found["without_us"], 1)
    return {"layers": LAYERS, "experts": EXPERTS, "top_k": TOP_K, "tokens": TOKENS, **found}
