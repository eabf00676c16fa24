# SPDX-License-Identifier: Apache-2.0
"""The light engine's classes, one layer, one batch: for tests of states and processes, not of numbers. Imported by the
subprocesses that tests/patch starts."""
import os
import sys
import time
from types import SimpleNamespace

import torch
from sglang.srt.layers.attention.triton_backend import TritonAttnBackend
from sglang.srt.layers.moe import topk
from sglang.srt.layers.radix_attention import RadixAttention
from sglang.srt.mem_cache.allocator import TokenToKVPoolAllocator
from sglang.srt.mem_cache.memory_pool import MLATokenToKVPool, ReqToTokenPool
from sglang.srt.model_executor.forward_batch_info import ForwardBatch, ForwardMode
from sglang.srt.model_executor.model_runner import ModelRunner

N, PREFIX, HEADS = 3, 6, 2


class Scene:
    """A rank with an allocator, a backend and a layer."""

    def __init__(self, rank: int = 0, ranks: int = 2, draft: bool = False, ep_size: int = 0):
        """ep_size: 0 = ranks, or 1."""
        self.pool = MLATokenToKVPool(64, 1, torch.bfloat16, 512, 64, 1, "cpu", False)
        self.rows = ReqToTokenPool(4, 32, "cpu", False)
        self.allocator = TokenToKVPoolAllocator(64, torch.bfloat16, "cpu", self.pool, need_sort=False)
        self.backend = TritonAttnBackend(SimpleNamespace(
            req_to_token_pool=self.rows, token_to_kv_pool=self.pool, token_to_kv_pool_allocator=self.allocator,
            sliding_window_size=None, page_size=1, device="cpu", gpu_id=rank, is_draft_worker=draft, tp_rank=rank,
            tp_size=ranks, moe_ep_rank=0 if ep_size else rank, moe_ep_size=ep_size or ranks, model_config=SimpleNamespace(context_len=32),
            server_args=SimpleNamespace(speculative_num_draft_tokens=N)))
        self.layer = RadixAttention(HEADS, 576, 0.1, 1, 0, v_head_dim=512)
        self.rows.req_to_token[1][:PREFIX] = self.allocator.alloc(PREFIX)
        self.locations = self.allocator.alloc(N)

    def call(self) -> list[float]:
        """The first values of one verify call's output."""
        mask = torch.tensor([True] * (N * (PREFIX + N)), dtype=torch.bool)
        batch = ForwardBatch(ForwardMode.TARGET_VERIFY, 1, torch.tensor([1]), torch.tensor([PREFIX]), self.locations,
                             SimpleNamespace(draft_token_num=N, custom_mask=mask))
        self.backend.init_forward_metadata(batch)
        q = torch.ones((N, HEADS * 576), dtype=torch.bfloat16)
        k = torch.ones((N, 1, 576), dtype=torch.bfloat16)
        out = self.backend.forward(q, k, k[..., :512].contiguous(), self.layer, batch)
        return out.view(N, HEADS, 512)[0][0][:4].tolist()


def route(layer: int, logits: list[list[float]], allow: bool = True) -> None:
    """One layer's router."""
    config = topk.TopKConfig(top_k=2, allow_routed_experts_capture=allow)
    topk.select_experts(torch.zeros(len(logits), 4), torch.tensor(logits), config, layer_id=layer)


def one_pass(model: object, valid: int, mode: ForwardMode = ForwardMode.TARGET_VERIFY, draft: bool = False,
             **fields: object) -> None:
    """A forward pass of `valid` tokens, padding not counted; model() is what runs in it."""
    batch = ForwardBatch(mode, 1, None, None, None, num_token_non_padded_cpu=valid, **fields)
    ModelRunner(lambda batch: model(), draft).forward(batch)


def stats(wait_s: float = 5.0, until=lambda s: True) -> dict:  # noqa: ANN001
    """This process's stats file once `until` holds and it was published after this call began."""
    from kdtree_patch.stats import read_stats

    path, deadline = f"{os.environ['KDTREE_STATS_DIR']}/{os.getpid()}.stats", time.monotonic() + wait_s
    first = read_stats(path)["publications"]
    while True:
        sys.modules["kdtree_patch.patch"].PATCH._wake.set()  # publish now, not in a second
        found = read_stats(path)
        if (found["publications"] > first + 1 and until(found)) or time.monotonic() > deadline:
            return found
        time.sleep(0.01)


def show(**facts: object) -> None:
    """Facts as the last line of JSON."""
    import json

    print(json.dumps(facts, default=str))
    sys.stdout.flush()
