# SPDX-License-Identifier: Apache-2.0
"""What kdtree adds to a step of 61 layers besides its attention, as the difference of two CUDA-graph replays; writes JSON.

    python bench_observe.py --lib PATH --out FILE.json [--commit HASH] [--driver VERSION]

The graphs differ in nothing but the calls named: around them each layer has a router (a matrix product and a top 8 of 384
experts) and a few products more, which leave the GPU as an engine's layer does. Microseconds of a step = median over
replays of both graphs in turn, subtracted.
"""

import argparse
import json
import statistics
import sys
from collections.abc import Callable
from datetime import datetime, timezone
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "python"))
from kdtree_kernel import GATE_FLAGS, GATE_WORD_BYTES, SLOT_COUNTS_BYTES, ask_look, set_mode  # noqa: E402
from kdtree_kernel.bench import find_triton  # noqa: E402
from kdtree_kernel.ops import load  # noqa: E402

LAYERS, EXPERTS, RANKS, TOP_K, HEADS, WIDTH = 61, 384, 8, 8, 8, 2048
SHAPE = (LAYERS, EXPERTS, RANKS)
REPLAYS = 40


class Step:
    """The buffers of one verify step of `batch` requests with n draft tokens behind `context` tokens."""

    forward: Callable[..., None] | None = None  # SGLang's extend_attention_fwd, if it is there

    def __init__(self, batch: int, n: int, context: int) -> None:
        def make(*shape: int, dtype: torch.dtype = torch.bfloat16) -> torch.Tensor:
            return torch.randn(*shape, device="cuda").to(dtype)

        tokens, keys = batch * n, batch * context
        self.n, self.tokens = n, tokens
        self.hidden, self.gate, self.weight = make(tokens, WIDTH), make(WIDTH, EXPERTS), make(WIDTH, WIDTH) * WIDTH**-0.5
        self.q, self.k = make(tokens, HEADS, 576), make(tokens, 1, 576)
        self.out, self.scratch, self.pool = make(tokens, HEADS, 512), make(tokens, HEADS, 512), make(keys + 1, 1, 576)
        self.qo = torch.arange(0, tokens + 1, n, device="cuda")
        self.kv = torch.arange(0, keys + 1, context, device="cuda", dtype=torch.int32)
        self.gated_qo, self.gated_kv = self.qo.clone(), self.kv.clone()
        self.slots = torch.randperm(keys, device="cuda") + 1
        self.v = self.k[..., :512].contiguous()
        self.mask = torch.ones(tokens * (context + n), dtype=torch.uint8, device="cuda")
        self.mask_starts = torch.arange(batch + 1, device="cuda") * n * (context + n)
        self.word = torch.zeros(GATE_WORD_BYTES, dtype=torch.uint8, pin_memory=True)
        self.flags = torch.zeros(GATE_FLAGS, dtype=torch.int32, device="cuda")
        self.counts = torch.zeros(SLOT_COUNTS_BYTES, dtype=torch.uint8, pin_memory=True)
        self.accum = torch.zeros(4232, dtype=torch.uint8, pin_memory=True)
        ops = torch.ops.kdtree
        size = ops.verify_attn_workspace_bytes(batch, n, HEADS, self.q)
        self.workspace = torch.empty(size, dtype=torch.uint8, device="cuda")
        self.compare_workspace = torch.zeros(ops.compare_workspace_bytes(tokens, self.q), dtype=torch.uint8, device="cuda")
        size = ops.moe_table_bytes(*SHAPE, self.q)
        self.table = torch.zeros(size, dtype=torch.uint8, device="cuda")
        self.copy = torch.zeros(size, dtype=torch.uint8, pin_memory=True)

    def layer(self, i: int, extra: Callable[["Step", int, torch.Tensor], None]) -> None:
        ids = (self.hidden @ self.gate).topk(TOP_K, dim=1)[1].to(torch.int32)
        extra(self, i, ids)
        for _ in range(2):
            torch.mm(self.hidden, self.weight, out=self.hidden)

    # what is measured

    def count(self, i: int, ids: torch.Tensor) -> None:
        torch.ops.kdtree.moe_count(self.table, *SHAPE, i, ids)

    def turn(self, i: int, ids: torch.Tensor) -> None:
        """Gate and slots, once a step."""
        if i == 0:
            torch.ops.kdtree.gate(self.word, self.qo, self.kv, self.gated_qo, self.gated_kv, self.flags)
            torch.ops.kdtree.slots(self.kv, self.slots, self.counts, self.flags[4:5])

    def attend(self, i: int, ids: torch.Tensor) -> None:
        torch.ops.kdtree.verify_attn(self.q, self.k, self.out, self.pool, self.qo, self.kv, self.slots, None, None, None,
                                     self.workspace, self.n, 576**-0.5, self.flags[0:1], self.scratch)

    def compare(self, i: int, ids: torch.Tensor) -> None:
        torch.ops.kdtree.compare(self.scratch, self.out, self.kv, i, self.accum, self.compare_workspace,
                                 self.flags[1:2])

    def engine(self, i: int, ids: torch.Tensor) -> None:
        """SGLang's kernel as it is captured in an armed process: in mode on it is told to do nothing."""
        type(self).forward(self.q, self.k, self.v, self.out, self.pool, self.pool[..., :512], self.gated_qo, self.gated_kv,
                           self.slots, self.mask, True, self.mask_starts, self.n, 1.0, 1.0, 576**-0.5)

    def armed(self, i: int, ids: torch.Tensor) -> None:
        """All that an armed process captures beside the engine's own kernel."""
        for call in (self.turn, self.attend, self.compare, self.count):
            call(i, ids)

    def tick(self, i: int, ids: torch.Tensor) -> None:
        if i == 0:
            torch.ops.kdtree.tick(self.word, self.q)


def nothing(step: Step, i: int, ids: torch.Tensor) -> None:
    """The graph without."""


def graph_of(step: Step, extra: Callable[[Step, int, torch.Tensor], None]) -> torch.cuda.CUDAGraph:
    def run() -> None:
        for i in range(LAYERS):
            step.layer(i, extra)

    run()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        run()
    return graph


def microseconds(run: Callable[[], None]) -> float:
    start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    start.record()
    run()
    end.record()
    end.synchronize()
    return start.elapsed_time(end) * 1000


def added(step: Step, extra: Callable[[Step, int, torch.Tensor], None], mode: int = 0) -> float:
    """Microseconds that `extra` adds to a step in that mode."""
    set_mode(memoryview(step.word.numpy()), mode)
    torch.ops.kdtree.gate(step.word, step.qo, step.kv, step.gated_qo, step.gated_kv, step.flags)
    torch.ops.kdtree.moe_begin(step.table, *SHAPE, step.tokens)
    without, within = graph_of(step, nothing), graph_of(step, extra)
    times: tuple[list[float], list[float]] = ([], [])
    for _ in range(REPLAYS):
        times[0].append(microseconds(without.replay))
        times[1].append(microseconds(within.replay))
    return statistics.median(times[1][3:]) - statistics.median(times[0][3:])


def around(step: Step) -> float:
    """Microseconds of moe_begin and moe_end, launched before and after a replay of a step that is counted."""
    set_mode(memoryview(step.word.numpy()), 0)
    graph = graph_of(step, Step.count)

    def run() -> None:
        torch.ops.kdtree.moe_begin(step.table, *SHAPE, step.tokens)
        graph.replay()
        torch.ops.kdtree.moe_end(step.table, *SHAPE, step.copy, 0, LAYERS - 1)

    run()
    times = [(microseconds(run), microseconds(graph.replay)) for _ in range(REPLAYS)][3:]
    return statistics.median(within for within, _ in times) - statistics.median(without for _, without in times)


def look(step: Step) -> float:
    """Microseconds of one look at the KV slots, which happens once a second."""
    def run() -> None:
        torch.ops.kdtree.slots(step.kv, step.slots, step.counts)

    ask_look(memoryview(step.word.numpy()))
    return statistics.median([microseconds(run) for _ in range(REPLAYS)][3:])


def main() -> None:
    """Command line; see the module's docstring."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--lib", required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--commit", default="unknown")
    parser.add_argument("--driver", default="unknown")
    parser.add_argument("--quick", action="store_true", help="the first shape only")
    options = parser.parse_args()
    load(options.lib)
    rows = []
    Step.forward, kernel_of = find_triton()
    shapes = [(1, 9, 1024), (1, 9, 65536), (16, 9, 4096), (1, 65, 4096)]
    for batch, n, context in shapes[:1] if options.quick else shapes:
        step = Step(batch, n, context)
        row = {"batch": batch, "draft_tokens": n, "context": context}
        parts = {"router": (Step.count, 0), "gate_and_slots": (Step.turn, 0), "attention_off": (Step.attend, 0),
                 "compare_off": (Step.compare, 0), "armed_off": (Step.armed, 0), "armed_validate": (Step.armed, 1),
                 "armed_on": (Step.armed, 2), "tick": (Step.tick, 0)}
        if Step.forward is not None:
            parts["engines_kernel_on"] = Step.engine, 2
        row |= {name: round(added(step, extra, mode), 1) for name, (extra, mode) in parts.items()}
        row |= {"router_begin_and_end": round(around(step), 1), "one_look": round(look(step), 1)}
        rows.append(row)
        print(" ".join(f"{name} {value}" for name, value in row.items()), flush=True)
    report = {"what": f"microseconds that kdtree adds to a step of {LAYERS} layers; {EXPERTS} experts, top {TOP_K}",
              "gpu": torch.cuda.get_device_name(), "driver": options.driver, "torch": torch.__version__,
              "cuda": torch.version.cuda, "commit": options.commit,
              "engines_kernel": kernel_of, "date": datetime.now(timezone.utc).isoformat(timespec="seconds"), "rows": rows}
    options.out.write_text(json.dumps(report, indent=1) + "\n")


if __name__ == "__main__":
    main()
