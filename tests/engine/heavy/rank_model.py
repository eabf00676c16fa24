# SPDX-License-Identifier: Apache-2.0
"""A small greedy model around SGLang's attention: serving.model_port.Model.

Embedding and position -> for each layer: q, latent k (v is its first 512) -> SGLang's backend -> output projection;
from layer 1 on a MoE block whose routing is SGLang's TopK and whose experts are one vector each -> logits. All weights
come from a fixed seed, so tokens repeat; attention's share is large, so a wrong kernel changes them.
"""
from __future__ import annotations

from types import SimpleNamespace

import torch
from sglang.srt.layers.moe.topk import TopK
from sglang.srt.layers.radix_attention import RadixAttention
from sglang.srt.model_executor.forward_batch_info import ForwardMode

from heavy import sglang_rank
from heavy.kernel_faults import KernelFaults
from heavy.sglang_rank import LATENT, ROPE
from serving.flags import Flags
from serving.model_port import Request
from serving.tree import VOCABULARY, Tree

_SLOTS, _CONTEXT, _HIDDEN, _TOP_K, _SCALE = 4095, 1024, 128, 8, 0.1309


class RankModel:
    """One rank: its own heads, the shared latent KV."""

    busy_share = 0.7

    def __init__(self, flags: Flags, rank: int, rendezvous: int, kernel_faults: KernelFaults):
        self._flags, self._rank, self._rendezvous, self._faults = flags, rank, rendezvous, kernel_faults
        self._pending: list[torch.Tensor] = []  # draft slots of the last verify, one tensor a request
        self._runner = sglang_rank.Runner(self._run)

    def join(self) -> None:
        self._args, self._config = sglang_rank.join(self._flags, self._rank, self._rendezvous, _CONTEXT)

    def make_cache(self) -> None:
        self._sglang = sglang_rank.make_cache(self._flags, self._rank, self._args, self._config, _SLOTS)

    def load(self) -> None:
        flags, width = self._flags, LATENT + ROPE
        own, shared = torch.Generator().manual_seed(1000 + self._rank), torch.Generator().manual_seed(17)

        def weight(generator: torch.Generator, *shape: int, gain: float = 1.0) -> torch.Tensor:
            made = torch.randn(*shape, generator=generator) * gain
            return made.to(flags.device)

        self._embedding = weight(shared, VOCABULARY, _HIDDEN)
        self._position = weight(shared, _CONTEXT, _HIDDEN, gain=0.5)
        self._to_k = [weight(shared, _HIDDEN, width, gain=_HIDDEN**-0.5) for _ in range(flags.layers)]
        self._to_q = [weight(own, _HIDDEN, flags.heads * width, gain=_HIDDEN**-0.5) for _ in range(flags.layers)]
        self._from_o = [weight(own, flags.heads * LATENT, _HIDDEN, gain=2 * (flags.heads * LATENT)**-0.5)
                        for _ in range(flags.layers)]
        self._router = [weight(shared, _HIDDEN, flags.experts, gain=_HIDDEN**-0.5) for _ in range(flags.layers)]
        self._experts = [weight(shared, flags.experts, _HIDDEN, gain=0.1) for _ in range(flags.layers)]
        self._to_logits = weight(shared, _HIDDEN, VOCABULARY)
        self._layers = [RadixAttention(flags.heads, width, _SCALE, 1, i, v_head_dim=LATENT)
                        for i in range(flags.layers)]
        self._topk = [TopK(_TOP_K, layer_id=i, use_grouped_topk=True, num_expert_group=1, topk_group=1,
                           renormalize=True, scoring_func="sigmoid", routed_scaling_factor=2.5,
                           correction_bias=weight(shared, flags.experts, gain=0.02)) for i in range(flags.layers)]

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
        row = self._sglang.rows.free_slots.pop(0)
        slots, count = self._alloc(len(tokens)), self._tensor([len(tokens)])
        request.cache = SimpleNamespace(row=row, length=0)
        self._append(request, slots)
        batch = SimpleNamespace(
            forward_mode=ForwardMode.EXTEND, batch_size=1, req_pool_indices=self._tensor([row]), seq_lens=count,
            seq_lens_sum=len(tokens), extend_prefix_lens=self._tensor([0]), extend_prefix_lens_cpu=[0],
            extend_seq_lens=count, extend_seq_lens_cpu=[len(tokens)], out_cache_loc=slots, spec_info=None,
            positions=self._tensor(range(len(tokens))), _attn_output=None)
        return int(self._forward(batch, tokens)[-1])

    def verify(self, requests: list[Request], trees: list[Tree]) -> list[list[int]]:
        count = self._flags.draft_tokens
        self._pending = [self._alloc(count) for _ in requests]
        lengths = [request.cache.length for request in requests]
        masks, positions = [], []
        for tree, length in zip(trees, lengths):
            mask = torch.ones(count, length + count, dtype=torch.bool)
            mask[:, length:] = torch.tensor(tree.visible())
            masks.append(mask.flatten())
            positions.extend(length + depth for depth in tree.depths())
        batch = SimpleNamespace(
            forward_mode=ForwardMode.TARGET_VERIFY, batch_size=len(requests),
            req_pool_indices=self._tensor([request.cache.row for request in requests]),
            seq_lens=self._tensor(lengths), seq_lens_sum=sum(lengths), out_cache_loc=torch.cat(self._pending),
            positions=self._tensor(positions), _attn_output=None,
            spec_info=SimpleNamespace(draft_token_num=count, custom_mask=torch.cat(masks).to(self._sglang.device)))
        tokens = self._forward(batch, [token for tree in trees for token in tree.tokens]).tolist()
        return [tokens[i * count:(i + 1) * count] for i in range(len(requests))]

    def commit(self, requests: list[Request], accepted: list[list[int]]) -> None:
        for request, slots, path in zip(requests, self._pending, accepted):
            keep = torch.zeros(len(slots), dtype=torch.bool)
            keep[path] = True
            self._append(request, slots[self._tensor(path)])
            self._sglang.allocator.free(slots[~keep.to(slots.device)])
        self._pending = []

    def release(self, request: Request) -> None:
        cache, rows = request.cache, self._sglang.rows
        self._sglang.allocator.free(rows.req_to_token[cache.row, :cache.length].long())
        rows.free_slots.append(cache.row)

    def _tensor(self, values: object) -> torch.Tensor:
        return torch.tensor(list(values), dtype=torch.int64, device=self._sglang.device)

    def _alloc(self, count: int) -> torch.Tensor:
        slots = self._sglang.allocator.alloc(count)
        if slots is None:
            raise RuntimeError(f"KV pool of {_SLOTS} slots is full")
        return slots

    def _append(self, request: Request, slots: torch.Tensor) -> None:
        cache = request.cache
        if cache.length + len(slots) > _CONTEXT:
            raise RuntimeError(f"a sequence of over {_CONTEXT} tokens does not fit")
        self._sglang.rows.req_to_token[cache.row, cache.length:cache.length + len(slots)] = slots.int()
        cache.length += len(slots)

    @torch.inference_mode()
    def _forward(self, batch: SimpleNamespace, tokens: list[int]) -> torch.Tensor:
        """One pass over `tokens` (flat, requests one after the other) -> [tokens] greedy next tokens."""
        batch.input_ids, batch.num_token_non_padded_cpu = self._tensor(tokens), len(tokens)
        batch.extend_num_tokens, batch.global_num_tokens_cpu = len(tokens), None
        batch.apply_deprecated_skip_attn_backend_init = lambda skip: None
        return self._runner.forward(batch).logits_output

    def _run(self, batch: SimpleNamespace) -> torch.Tensor:
        """All layers."""
        backend, dtype, tokens = self._sglang.backend, self._sglang.dtype, batch.input_ids
        with self._faults:
            backend.init_forward_metadata(batch)
            hidden = embedded = self._embedding[tokens] + self._position[batch.positions]
            for layer in self._layers:
                i, normed = layer.layer_id, torch.nn.functional.rms_norm(hidden, (_HIDDEN,))
                k = (normed @ self._to_k[i]).to(dtype).view(-1, 1, LATENT + ROPE)
                q = (normed @ self._to_q[i]).to(dtype)
                out = backend.forward(q, k, k[..., :LATENT], layer, batch)
                hidden = hidden + out.float() @ self._from_o[i]
                if i > 0:
                    hidden = hidden + self._moe(i, embedded)
            logits = torch.nn.functional.rms_norm(hidden, (_HIDDEN,)) @ self._to_logits
        return logits.argmax(-1)

    def _moe(self, layer: int, embedded: torch.Tensor) -> torch.Tensor:
        """SGLang's routing, of the token's embedding: without an all-reduce that is what all ranks agree on. An expert
        is one vector."""
        normed = torch.nn.functional.rms_norm(embedded, (_HIDDEN,))
        routed = self._topk[layer](normed, normed @ self._router[layer])
        return (routed.topk_weights.unsqueeze(-1) * self._experts[layer][routed.topk_ids.long()]).sum(1)
