# SPDX-License-Identifier: Apache-2.0
"""Verify batches of a DDTree engine through SGLang's own attention backend, on the CPU in fp16. Imported by a subprocess
that test_ddtree.py starts with kdtree's hook in it.

DDTree is in no release of SGLang; its form is that of sgl-project/sglang pull request 29907: every request has the same
draft_token_num = budget + 1 nodes, parents before children; a tree with fewer nodes ends in padding nodes, whose mask rows
are False throughout, prefix included (a later form lets them see themselves). A budget below the draft's block is a chain.
"""
from __future__ import annotations

import dataclasses
import random
import socket
from types import SimpleNamespace

from heavy import environment

environment.prepare("cpu")

import torch  # noqa: E402
from heavy import sglang_rank  # noqa: E402
from serving.flags import parse  # noqa: E402
from sglang.srt.layers.radix_attention import RadixAttention  # noqa: E402
from sglang.srt.model_executor.forward_batch_info import CaptureHiddenMode, ForwardMode  # noqa: E402

HEADS, SCALE, SLOTS, CONTEXT, BLOCK = 2, 0.1309, 2047, 512, 16


@dataclasses.dataclass
class DDTreeVerifyInput:
    """The fields that the pull request's spec_info has. custom_mask: bool, requests one after the other, each
    [draft_token_num, prefix + draft_token_num]; the three retrive_*: [requests, draft_token_num], -1 = none."""

    draft_token: torch.Tensor
    positions: torch.Tensor
    draft_token_num: int
    tree_budget: int
    actual_tree_sizes: torch.Tensor
    custom_mask: torch.Tensor
    topk: int
    spec_steps: int
    tree_is_spine: bool
    retrive_index: torch.Tensor
    retrive_next_token: torch.Tensor
    retrive_next_sibling: torch.Tensor
    child_maps: list = dataclasses.field(default_factory=list)
    capture_hidden_mode: CaptureHiddenMode = CaptureHiddenMode.FULL


def make_parents(size: int, chain: bool, chance: random.Random) -> list[int]:
    """Parent of each node, -1 for the root; no path is longer than the draft's block."""
    parents, depths = [-1], [0]
    for node in range(1, size):
        parent = node - 1 if chain else chance.choice([i for i in range(node) if depths[i] < BLOCK - 1])
        parents.append(parent)
        depths.append(depths[parent] + 1)
    return parents


def visible(parents: list[int], width: int, padding_sees_itself: bool) -> torch.Tensor:
    """bool [width, width]: a node sees its ancestors and itself."""
    seen = torch.zeros(width, width, dtype=torch.bool)
    for node, parent in enumerate(parents):
        if parent >= 0:
            seen[node] = seen[parent]
        seen[node, node] = True
    for node in range(len(parents), width):
        seen[node, node] = padding_sees_itself
    return seen


class Engine:
    """One rank: pools with scattered slots, the backend by its true constructor, one layer."""

    def __init__(self) -> None:
        flags = parse(["--model-path", "x", "--tp", "1", "--heads", str(HEADS), "--layers", "1",
                       "--speculative-num-draft-tokens", str(BLOCK), "--max-running-requests", "8"], "", 1, 2)
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        args, config = sglang_rank.join(flags, 0, port, CONTEXT)
        self.rank = sglang_rank.make_cache(flags, 0, args, config, SLOTS)
        self.layer = RadixAttention(HEADS, 576, SCALE, 1, 0, v_head_dim=512)


class Batch:
    """One verify step. prefixes, sizes: committed tokens and tree nodes of each request; padded: requests that a CUDA
    graph's batch has beyond them, with row 0, one prefix token in slot 0, and garbage for everything else."""

    def __init__(self, engine: Engine, budget: int, prefixes: list[int], sizes: list[int], seed: int,
                 padding_sees_itself: bool = False, knows_sum: bool = True, padded: int = 0):
        torch.manual_seed(seed)
        chance = random.Random(seed)
        self.engine, self.width, self.prefixes, self.sizes = engine, budget + 1, prefixes, sizes
        width, rank, real = self.width, engine.rank, len(prefixes)
        chain = budget <= BLOCK - 1
        trees = [make_parents(size, chain, chance) for size in sizes]
        self.seen = [visible(parents, width, padding_sees_itself) for parents in trees]
        self.keys = rank.pool.get_key_buffer(0)
        self.keys.normal_()
        order = (torch.randperm(SLOTS) + 1).tolist()
        self.slots = [torch.tensor([order.pop() for _ in range(prefix)]) for prefix in prefixes]
        for row, slots in enumerate(self.slots, 1):
            rank.rows.req_to_token[row, :len(slots)] = slots.int()
        rank.rows.req_to_token[0] = 0
        tokens = (real + padded) * width
        where = torch.tensor([order.pop() for _ in range(real * width)] + [0] * (padded * width))
        self.q, self.k = torch.randn(tokens, HEADS * 576).half(), torch.randn(tokens, 1, 576).half()
        self.q[real * width:], self.k[real * width:] = float("nan"), float("inf")
        masks = []
        for prefix, size, seen in zip(prefixes, sizes, self.seen):
            mask = torch.zeros(width, prefix + width, dtype=torch.bool)
            mask[:size, :prefix] = True
            mask[:, prefix:] = seen
            masks.append(mask.flatten())
        lengths = torch.tensor(prefixes + [1] * padded)
        nodes = torch.full((real, width), -1)
        self.batch = SimpleNamespace(
            forward_mode=ForwardMode.TARGET_VERIFY, batch_size=real + padded,
            req_pool_indices=torch.tensor([*range(1, real + 1), *[0] * padded]), seq_lens=lengths,
            seq_lens_sum=int(lengths.sum()) if knows_sum else None, out_cache_loc=where, _attn_output=None,
            spec_info=DDTreeVerifyInput(
                draft_token=torch.zeros(tokens, dtype=torch.int64), positions=torch.zeros(tokens, dtype=torch.int64),
                draft_token_num=width, tree_budget=budget, actual_tree_sizes=torch.tensor(sizes),
                custom_mask=torch.cat(masks), topk=1 if chain else 2, spec_steps=budget, tree_is_spine=chain,
                retrive_index=nodes, retrive_next_token=nodes, retrive_next_sibling=nodes))
        self.padded = padded

    def run(self) -> torch.Tensor:
        """[real tokens, heads, 512] of the backend, in the mode in force; NaN where nobody wrote."""
        backend = self.engine.rank.backend
        self.batch._attn_output = torch.full((len(self.q), HEADS * 512), float("nan"), dtype=torch.float16)
        with torch.inference_mode():
            backend.init_forward_metadata(self.batch)
            if self.padded:
                backend.forward_metadata = self._as_captured(backend.forward_metadata)
            out = backend.forward(self.q, self.k, self.k[..., :512], self.engine.layer, self.batch)
        return out.view(-1, HEADS, 512)[:len(self.prefixes) * self.width]

    def _as_captured(self, made: object) -> object:
        """As a CUDA graph's buffers have it: int64 rows, mask bytes of the largest batch with stale ones behind."""
        mask = made.custom_mask.to(torch.uint8)
        stale = torch.randint(0, 256, (self.padded * self.width * (CONTEXT + self.width),), dtype=torch.uint8)
        return dataclasses.replace(made, qo_indptr=made.qo_indptr.long(), custom_mask=torch.cat([mask, stale]),
                                   kv_indices=torch.cat([made.kv_indices, torch.full((64,), 1 << 40)]))

    def want(self) -> torch.Tensor:
        """The same in fp64, from the definition: every row sees the whole prefix, the mask rules the tree alone."""
        outs, width = [], self.width
        for r, (slots, seen) in enumerate(zip(self.slots, self.seen)):
            rows = slice(r * width, (r + 1) * width)
            keys = torch.cat([self.keys[slots, 0], self.k[rows, 0]]).double()
            scores = torch.einsum("nhd,kd->nhk", self.q[rows].view(width, HEADS, 576).double(), keys) * SCALE
            hidden = torch.cat([torch.zeros(width, len(slots), dtype=torch.bool), ~seen], 1)
            outs.append(scores.masked_fill(hidden[:, None], float("-inf")).softmax(-1) @ keys[:, :512])
        return torch.cat(outs)

    def is_padding(self) -> torch.Tensor:
        """bool [real tokens]: nodes beyond their tree."""
        return torch.cat([torch.arange(self.width) >= size for size in self.sizes])


def errors(batch: Batch) -> list[float]:
    """Largest |out - want| / |want| over tree nodes, then over padding nodes (0 = there are none); inf if not finite."""
    out, want, padding = batch.run().double(), batch.want(), batch.is_padding()
    relative = ((out - want).norm(dim=-1) / want.norm(dim=-1)).amax(-1).nan_to_num(float("inf"))
    return [float(relative[rows].max()) if bool(rows.any()) else 0.0 for rows in (~padding, padding)]
