# SPDX-License-Identifier: Apache-2.0
"""A rank of the light engine: the stand-in classes called in SGLang's order, with a model that plain Python can run."""
from __future__ import annotations

import logging
import random
from types import SimpleNamespace

from serving.faults import Faults
from serving.flags import Flags
from serving.model_port import Request
from serving.rank import ep_rank
from serving.tree import VOCABULARY, Tree

import torch
from sglang.kernels.ops.attention.extend_attention import VALUES
from sglang.srt.distributed import parallel_state
from sglang.srt.layers.attention.triton_backend import TritonAttnBackend
from sglang.srt.layers.moe import topk
from sglang.srt.layers.radix_attention import RadixAttention
from sglang.srt.mem_cache.allocator import TokenToKVPoolAllocator
from sglang.srt.mem_cache.memory_pool import MLATokenToKVPool, ReqToTokenPool
from sglang.srt.model_executor.forward_batch_info import ForwardBatch, ForwardMode
from sglang.srt.model_executor.model_runner import ModelRunner
from sglang.srt.plugins import load_plugins  # noqa: F401

from light import kernel_faults

logger = logging.getLogger("test_engine.light")

_CONTEXT, _SLOTS, _TOP_K, _ROUTES = 512, 1023, 8, 64


def make_model(flags: Flags, rank: int, rendezvous: int, faults: Faults) -> "LightModel":
    """The rank's model; its faults in the kernel are planted here, around the op, never in the product."""
    kernel_faults.plant(faults, rank)
    return LightModel(flags, rank, faults)


class LightModel:
    """serving.model_port.Model without PyTorch."""

    busy_share = 0.05  # eight ranks on a small machine leave room for what is tested

    def __init__(self, flags: Flags, rank: int, faults: Faults):
        self._flags, self._rank, self._faults = flags, rank, faults
        self._pending: list[torch.Tensor] = []  # draft slots of the last verify, one tensor a request
        self._runner = ModelRunner(self._run)

    def join(self) -> None:
        flags, rank = self._flags, self._rank
        parallel_state.initialize(rank, flags.ranks, ep_rank(flags, rank), flags.ep_size)

    def load(self) -> None:
        flags = self._flags
        self._layers = [RadixAttention(flags.heads, 576, 0.1309, 1, i, v_head_dim=512) for i in range(flags.layers)]
        self._topk = topk.TopKConfig(top_k=_TOP_K, renormalize=True, scoring_func="sigmoid")
        chance = random.Random(17)
        self._embedding = [[chance.uniform(-1, 1) for _ in range(VALUES)] for _ in range(VOCABULARY)]
        self._popularity = [chance.paretovariate(2) for _ in range(flags.experts + _ROUTES)]

    def make_cache(self) -> None:
        flags, rank = self._flags, self._rank
        rows = flags.max_running_requests * 2 + 2
        self._rows = ReqToTokenPool(rows, _CONTEXT, "cpu", False)
        self._pool = MLATokenToKVPool(_SLOTS, 1, torch.bfloat16, 512, 64, flags.layers, "cpu", False)
        self._allocator = TokenToKVPoolAllocator(_SLOTS, torch.bfloat16, "cpu", self._pool, need_sort=False)
        logger.info("KV Cache is allocated. dtype: torch.bfloat16, #tokens: %d, KV size: %.2f GB", _SLOTS, 14.5)
        self._backend = TritonAttnBackend(SimpleNamespace(
            req_to_token_pool=self._rows, token_to_kv_pool=self._pool, token_to_kv_pool_allocator=self._allocator,
            sliding_window_size=None, page_size=1, device="cpu", gpu_id=rank, is_draft_worker=False,
            ps=SimpleNamespace(tp_rank=rank, tp_size=flags.ranks, moe_ep_rank=ep_rank(flags, rank),
                               moe_ep_size=flags.ep_size, gpu_id=rank),
            model_config=SimpleNamespace(context_len=_CONTEXT),
            server_args=SimpleNamespace(speculative_num_draft_tokens=flags.draft_tokens)))

    def info(self) -> dict[str, int]:
        return {"max_total_num_tokens": _SLOTS, "max_req_input_len": _CONTEXT - 1}

    def warm_up(self, batch: int) -> None:
        requests = [Request(-1, [i % VOCABULARY, 1], 1) for i in range(batch)]
        for request in requests:
            request.output.append(self.prefill(request))
        self.verify(requests, [request.draft_tree(self._flags.draft_tokens) for request in requests])
        self.commit(requests, [[0]] * batch)
        for request in requests:
            self.release(request)

    def prefill(self, request: Request) -> int:
        tokens = [token % VOCABULARY for token in request.prompt][: _CONTEXT // 2]
        row, slots = self._rows.free_slots.pop(0), self._alloc(len(tokens))
        request.cache = SimpleNamespace(row=row, length=0)
        self._append(request, slots)
        batch = ForwardBatch(ForwardMode.EXTEND, 1, torch.tensor([row]), torch.tensor([len(tokens)]), slots,
                             extend_prefix_lens=[0])
        return self._forward(batch, tokens, list(range(len(tokens))))[-1]

    def verify(self, requests: list[Request], trees: list[Tree]) -> list[list[int]]:
        count = self._flags.draft_tokens
        self._pending = [self._alloc(count) for _ in requests]
        lengths = [request.cache.length for request in requests]
        mask: list[bool] = []
        for tree, length in zip(trees, lengths):
            for row in tree.visible():
                mask.extend([True] * length)
                mask.extend(row)
        batch = ForwardBatch(
            ForwardMode.TARGET_VERIFY, len(requests), torch.tensor([request.cache.row for request in requests]),
            torch.tensor(lengths), torch.cat(self._pending),
            SimpleNamespace(draft_token_num=count, custom_mask=torch.tensor(mask, dtype=torch.bool)))
        positions = [length + depth for tree, length in zip(trees, lengths) for depth in tree.depths()]
        tokens = self._forward(batch, [token for tree in trees for token in tree.tokens], positions)
        return [tokens[i * count:(i + 1) * count] for i in range(len(requests))]

    def commit(self, requests: list[Request], accepted: list[list[int]]) -> None:
        for request, slots, path in zip(requests, self._pending, accepted):
            self._append(request, slots[torch.tensor(path)])
            rest = [i for i in range(len(slots)) if i not in path]
            if rest:
                self._allocator.free(slots[torch.tensor(rest)])
        self._pending = []

    def release(self, request: Request) -> None:
        cache = request.cache
        self._allocator.free(self._rows.req_to_token[cache.row][:cache.length].clone().long())
        self._rows.free_slots.append(cache.row)

    def _alloc(self, count: int) -> torch.Tensor:
        slots = self._allocator.alloc(count)
        if slots is None:
            raise RuntimeError(f"KV pool of {_SLOTS} slots is full")
        return slots

    def _append(self, request: Request, slots: torch.Tensor) -> None:
        cache = request.cache
        if cache.length + len(slots) > _CONTEXT:
            raise RuntimeError(f"a sequence of over {_CONTEXT} tokens does not fit")
        self._rows.req_to_token[cache.row][cache.length:cache.length + len(slots)] = slots
        cache.length += len(slots)

    def _forward(self, batch: ForwardBatch, tokens: list[int], positions: list[int]) -> list[int]:
        """One pass over `tokens` (flat, requests one after the other) -> the next token after each."""
        batch.input_ids, batch.positions = torch.tensor(tokens), positions
        batch.num_token_non_padded_cpu = len(tokens)
        return self._runner.forward(batch)

    def _run(self, batch: ForwardBatch) -> list[int]:
        """All layers."""
        heads, tokens, positions = self._flags.heads, batch.input_ids.tolist(), batch.positions
        self._backend.init_forward_metadata(batch)
        hidden = [list(self._embedding[token]) for token in tokens]
        logit_cap = 30.0 if self._faults.hits("logit_cap", self._rank) is not None else 0.0
        for layer in self._layers:
            layer.logit_cap = logit_cap
            q = torch.zeros((len(tokens), heads * 576), dtype=torch.bfloat16)
            k = torch.zeros((len(tokens), 1, 576), dtype=torch.bfloat16)
            for i, values in enumerate(hidden):
                for head in range(heads):
                    at = (i * heads + head) * 576
                    q._storage[at:at + VALUES] = [value * (1 + 0.1 * (head + self._rank)) for value in values]
                k._storage[i * 576:i * 576 + VALUES] = values
            out = self._backend.forward(q, k, k[..., :512], layer, batch)._storage
            width = heads * 512
            for i, values in enumerate(hidden):
                hidden[i] = [0.5 * value + sum(out[i * width + head * 512 + c] for head in range(heads)) / heads
                             for c, value in enumerate(values)]
            if layer.layer_id > 0:
                self._route(layer.layer_id, tokens, positions)
        return [int(abs(sum(values)) * 7919) % VOCABULARY for values in hidden]

    def _route(self, layer_id: int, tokens: list[int], positions: list[int]) -> None:
        """The MoE block's routing, by token and position alone: every rank routes alike. Its experts do nothing, and
        some are more popular than others."""
        experts, flat = self._flags.experts, []
        few = self._faults.get("few_experts") is not None
        for token, position in zip(tokens, positions):
            start = (token * 31 + position * 17 + layer_id) % _ROUTES
            flat.extend([-expert for expert in range(experts)] if few else self._popularity[start:start + experts])
        logits = torch.Tensor(flat, (len(tokens), experts), torch.float32)
        topk.select_experts(None, logits, self._topk, layer_id=layer_id)
