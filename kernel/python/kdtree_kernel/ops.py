# SPDX-License-Identifier: Apache-2.0
"""Loads libkdtree_torch.so into torch and registers the ops' fake implementations (shapes only, for tracing)."""

import torch

_loaded: str | None = None


def loaded() -> str | None:
    """The path of the library in use, or None."""
    return _loaded


def load(path: str) -> None:
    """Loads the library at `path`; a second call with the same path does nothing.

    Raises OSError if the file can't be loaded, RuntimeError if another library is in use already.
    """
    global _loaded
    if _loaded == path:
        return
    if _loaded is not None:
        raise RuntimeError(f"kdtree_kernel: {_loaded} is loaded already, can't load {path} too")
    torch.ops.load_library(path)
    _register_fakes()
    _loaded = path


def _register_fakes() -> None:
    @torch.library.register_fake("kdtree::verify_attn")
    def _(q, k_draft, out, kv_pool, qo_indptr, kv_indptr, kv_indices, custom_mask, mask_indptr, out_cache_loc,
          workspace, draft_tokens, sm_scale, enable=None, out_scratch=None, nsplit=0,
          k_scale=1.0, v_scale=1.0) -> None:
        torch._check(q.dim() == 3 and q.size(2) == 576, lambda: f"q must be [tokens, heads, 576], got {q.shape}")
        torch._check(out.numel() == q.size(0) * q.size(1) * 512,
                     lambda: f"out must be [tokens, heads, 512], got {out.shape}")
        torch._check(out.dtype == q.dtype, lambda: f"out must be of q's type, got {out.dtype}")

    @torch.library.register_fake("kdtree::gate")
    def _(word, qo_indptr, kv_indptr, gated_qo_indptr, gated_kv_indptr, flags) -> None:
        torch._check(gated_qo_indptr.dtype == qo_indptr.dtype, lambda: "gated_qo_indptr must be of qo_indptr's type")

    @torch.library.register_fake("kdtree::tick")
    def _(word, like) -> None:
        pass

    @torch.library.register_fake("kdtree::slots")
    def _(kv_indptr, kv_indices, counts, enable=None, max_slots=65536) -> None:
        pass

    @torch.library.register_fake("kdtree::moe_begin")
    def _(table, layers, experts, ranks, rows) -> None:
        pass

    @torch.library.register_fake("kdtree::moe_count")
    def _(table, layers, experts, ranks, layer, ids) -> None:
        torch._check(ids.dim() == 2, lambda: f"ids must be [tokens, k], got {ids.shape}")

    @torch.library.register_fake("kdtree::moe_end")
    def _(table, layers, experts, ranks, copy, first, last) -> None:
        pass

    @torch.library.register_fake("kdtree::compare")
    def _(ours, engines, kv_indptr, layer, accum, workspace, enable=None, max_ulp=4.0, mean_ulp=0.5) -> None:
        torch._check(ours.numel() == engines.numel(), lambda: f"engines must be {ours.shape}, got {engines.shape}")
