# SPDX-License-Identifier: Apache-2.0
"""moe and slots against what torch counts."""

from typing import Any

import pytest
import torch
from kdtree_kernel import MOE_SHARE, SLOT_COUNTS_BYTES, read_moe, read_slots

LAYERS, EXPERTS, RANKS = 61, 384, 8
SHAPE = (LAYERS, EXPERTS, RANKS)


class Router:
    """A table, its copy on the host, and the same counted by torch.bincount."""

    def __init__(self, device: str, shape: tuple[int, int, int] = SHAPE) -> None:
        self.device, self.shape = device, shape
        size = torch.ops.kdtree.moe_table_bytes(*shape, torch.zeros(1, device=device))
        self.table = torch.zeros(size, dtype=torch.uint8, device=device)
        self.copy = torch.zeros(size, dtype=torch.uint8, pin_memory=device == "cuda")
        layers, experts, ranks = shape
        self.want: dict[str, Any] = {"steps": 0, "tokens": 0, "experts": torch.zeros(layers, experts, dtype=torch.int64),
                                     "unique": torch.zeros(layers, dtype=torch.int64),
                                     "layer_steps": torch.zeros(layers, dtype=torch.int64),
                                     "peak": torch.zeros(layers, dtype=torch.int64),
                                     "idle": torch.zeros(layers, ranks, dtype=torch.int64),
                                     "straggler": torch.zeros(layers, ranks, dtype=torch.int64)}

    def step(self, ids: list[torch.Tensor], rows: int) -> None:
        """One pass; ids: each layer's [tokens, k], on the CPU."""
        torch.ops.kdtree.moe_begin(self.table, *self.shape, rows)
        for layer, chosen in enumerate(ids):
            torch.ops.kdtree.moe_count(self.table, *self.shape, layer, chosen.to(self.device))
        torch.ops.kdtree.moe_end(self.table, *self.shape, self.copy, 0, self.shape[0] - 1)
        self.expect(ids, rows)

    def expect(self, ids: list[torch.Tensor], rows: int) -> None:
        """By bincount on the host."""
        layers, experts, ranks = self.shape
        self.want["steps"] += rows > 0
        self.want["tokens"] += rows
        for layer, chosen in enumerate(ids if rows > 0 else []):
            real = chosen[:rows].flatten().long()
            counts = torch.bincount(real[(real >= 0) & (real < experts)], minlength=experts)
            self.want["experts"][layer] += counts
            self.want["unique"][layer] += (counts > 0).sum()
            self.want["layer_steps"][layer] += 1
            if ranks:
                loads = counts.view(ranks, -1).sum(1)
                fullest = (loads == loads.max()) & (loads > 0)
                self.want["peak"][layer] += loads.max()
                self.want["idle"][layer] += loads == 0
                self.want["straggler"][layer] += fullest * (MOE_SHARE // max(int(fullest.sum()), 1))

    def seen(self) -> dict[str, Any]:
        if self.device == "cuda":
            torch.cuda.synchronize()
        return read_moe(memoryview(self.copy.numpy()), *self.shape)

    def check(self) -> None:
        want = {name: value if isinstance(value, int) else value.tolist() for name, value in self.want.items()}
        assert self.seen() == want


def random_ids(tokens: int, k: int, seed: int, experts: int = EXPERTS, kind: torch.dtype = torch.int32) -> torch.Tensor:
    g = torch.Generator().manual_seed(seed)
    return torch.stack([torch.randperm(experts, generator=g)[:k] for _ in range(tokens)]).to(kind)


@pytest.mark.parametrize("tokens, rows", [(9, 9), (36, 27), (144, 1), (1, 1), (65, 65)])
def test_counts_are_bincounts(device: str, tokens: int, rows: int) -> None:
    """61 layers, 384 experts, 8 ranks, 3 steps; rows beyond `rows` are padding."""
    router = Router(device)
    for step in range(3):
        router.step([random_ids(tokens, 8, 100 * step + layer) for layer in range(LAYERS)], rows)
    router.check()


def test_a_planted_skew_shows_as_idle_ranks(device: str) -> None:
    router = Router(device)
    hot = torch.arange(40, 48, dtype=torch.int32).expand(9, 8).contiguous()  # experts of rank 0 alone
    for _ in range(5):
        router.step([hot] * LAYERS, 9)
    router.check()
    seen = router.seen()
    assert seen["idle"] == [[0] + [5] * 7] * LAYERS and seen["unique"] == [5 * 8] * LAYERS
    assert seen["peak"] == [5 * 72] * LAYERS and seen["straggler"] == [[5 * MOE_SHARE] + [0] * 7] * LAYERS
    assert seen["experts"][7][40:48] == [45] * 8 and sum(seen["experts"][7]) == 360


@pytest.mark.parametrize("kind", [torch.int32, torch.int64], ids=str)
def test_shared_experts_and_masked_ids_are_left_out(device: str, kind: torch.dtype) -> None:
    router = Router(device, (2, 16, 4))
    ids = torch.tensor([[0, 5, 16], [-1, 15, 17], [-1, -1, 16]], dtype=kind)
    router.step([ids, ids], 3)
    router.check()
    assert router.seen()["experts"][0] == [1 if e in (0, 5, 15) else 0 for e in range(16)]


def test_a_table_without_ranks_has_no_idle_ones(device: str) -> None:
    router = Router(device, (3, 60, 0))
    router.step([random_ids(9, 4, layer, 60) for layer in range(3)], 9)
    router.check()


def test_a_step_that_is_shared_is_shared_among_those_that_had_most(device: str) -> None:
    """Rank loads 2, 2, 1, 0, and then 1, 1, 1, 0: halves, and thirds."""
    router = Router(device, (1, 8, 4))
    for ids in ([[0, 1, 2, 3, 4]], [[0, 2, 5]]):
        router.step([torch.tensor(ids)], 1)
    router.check()
    seen = router.seen()
    assert seen["peak"] == [2 + 1] and seen["idle"] == [[0, 0, 0, 2]]
    assert seen["straggler"] == [[MOE_SHARE * 5 // 6] * 2 + [MOE_SHARE // 3, 0]] and sum(seen["straggler"][0]) == 2 * MOE_SHARE


def test_what_no_pass_ended_waits_for_its_layer(device: str) -> None:
    """A layer outside of [first, last] is counted by the call that names it, as a step of its own."""
    router = Router(device, (2, 8, 2))
    ids = random_ids(5, 2, 9, 8)
    for last in (0, 1):
        torch.ops.kdtree.moe_begin(router.table, *router.shape, 5)
        if last == 0:
            for layer in range(2):
                torch.ops.kdtree.moe_count(router.table, *router.shape, layer, ids.to(device))
        torch.ops.kdtree.moe_end(router.table, *router.shape, router.copy, 0, last)
    assert router.seen()["layer_steps"] == [1, 1] and sum(router.seen()["experts"][1]) == 10


def test_a_pass_that_nobody_began_is_not_counted(device: str) -> None:
    """Prefill, a draft model, a warm-up: after the end of a pass and before the first."""
    router = Router(device)
    for _ in range(2):
        torch.ops.kdtree.moe_count(router.table, *SHAPE, 3, random_ids(8192, 8, 1).to(device))
        router.step([random_ids(9, 8, layer) for layer in range(LAYERS)], 9)
    router.check()


def test_rows_of_a_view_are_where_their_stride_says(device: str) -> None:
    router = Router(device, (1, 16, 4))
    wide = random_ids(6, 8, 3, 16)
    torch.ops.kdtree.moe_begin(router.table, *router.shape, 6)
    torch.ops.kdtree.moe_count(router.table, *router.shape, 0, wide.to(device)[:, :4])
    torch.ops.kdtree.moe_end(router.table, *router.shape, router.copy, 0, 0)
    router.expect([wide[:, :4]], 6)
    router.check()


def test_a_copy_of_some_layers_leaves_the_others(device: str) -> None:
    router = Router(device, (4, 8, 2))
    ids = random_ids(5, 2, 9, 8)
    torch.ops.kdtree.moe_begin(router.table, *router.shape, 5)
    for layer in range(4):
        torch.ops.kdtree.moe_count(router.table, *router.shape, layer, ids.to(device))
    torch.ops.kdtree.moe_end(router.table, *router.shape, router.copy, 1, 2)
    seen = router.seen()
    assert seen["layer_steps"] == [0, 1, 1, 0] and sum(seen["experts"][0]) == 0 and sum(seen["experts"][2]) == 10


def test_a_captured_router_counts_what_each_replay_chooses(gpu: str) -> None:
    """The graph holds the counting alone; rows and ids change between replays."""
    router = Router(gpu)
    buffers = [torch.zeros(36, 8, dtype=torch.int32, device=gpu) for _ in range(LAYERS)]

    def layers() -> None:
        for layer, ids in enumerate(buffers):
            torch.ops.kdtree.moe_count(router.table, *SHAPE, layer, ids)

    layers()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        layers()
    for step, rows in enumerate((36, 9, 0, 27, 1)):
        ids = [random_ids(36, 8, 1000 * step + layer) for layer in range(LAYERS)]
        for buffer, chosen in zip(buffers, ids):
            buffer.copy_(chosen)
        if rows:
            torch.ops.kdtree.moe_begin(router.table, *SHAPE, rows)
        graph.replay()
        if rows:
            torch.ops.kdtree.moe_end(router.table, *SHAPE, router.copy, 0, LAYERS - 1)
        router.expect(ids, rows)
    router.check()


def looked(device: str, bounds: list[int], slots: torch.Tensor, **more: Any) -> dict[str, int]:
    counts = torch.zeros(SLOT_COUNTS_BYTES, dtype=torch.uint8, pin_memory=device == "cuda")
    torch.ops.kdtree.slots(torch.tensor(bounds, dtype=torch.int32, device=device), slots.to(device), counts, **more)
    if device == "cuda":
        torch.cuda.synchronize()
    return read_slots(memoryview(counts.numpy()))


@pytest.mark.parametrize("kind", [torch.int32, torch.int64], ids=str)
def test_slots_that_follow_each_other_are_counted_within_requests(device: str, kind: torch.dtype) -> None:
    runs = torch.cat([torch.arange(5, 2005), torch.arange(10, 13), torch.tensor([99, 98, 99])]).to(kind)
    assert looked(device, [0, 2000, 2000, 2001, 2003, 2006], runs) == {
        "pairs": 1999 + 1 + 2, "contiguous": 1999 + 1 + 1, "looks": 1}


def test_random_slots_against_torch(device: str) -> None:
    slots = torch.randint(0, 50, (5000,), generator=torch.Generator().manual_seed(5))
    bounds = [0, 17, 17, 1500, 1501, 5000]
    follow = sum(int((slots[a:b].diff() == 1).sum()) for a, b in zip(bounds, bounds[1:]))
    assert looked(device, bounds, slots) == {"pairs": 16 + 1482 + 0 + 3498, "contiguous": follow, "looks": 1}


def test_a_look_is_bounded(device: str) -> None:
    slots = torch.arange(4000)
    assert looked(device, [0, 1000, 4000], slots, max_slots=200)["pairs"] == 2 * 99
    assert looked(device, [0, 1000, 4000], slots, max_slots=1)["pairs"] == 2


def test_a_look_that_nobody_asked_for_sees_nothing(device: str) -> None:
    off = torch.zeros(1, dtype=torch.int32, device=device)
    assert looked(device, [0, 3], torch.arange(3), enable=off)["looks"] == 0
