# SPDX-License-Identifier: Apache-2.0
"""No attention at all, for benchmarks: what is left of a step is its ceiling for any attention kernel."""
import os


def skips(verify: bool, longest_prefix: int) -> bool:
    """Whether this call's attention is left out. longest_prefix: of the batch, known for prefill alone."""
    if verify:
        return "KDTREE_TEST_CEILING" in os.environ
    limit = os.environ.get("KDTREE_TEST_SKIP_PREFILL", "")
    return bool(limit) and longest_prefix >= int(limit)


def around_extend(original, self, q, k, v, layer, forward_batch, save_kv_cache=True, **kwargs):  # noqa: ANN001
    """TritonAttnBackend.forward_extend: KV is saved, the kernel is replaced by zeros where skips() says so."""
    mode = forward_batch.forward_mode
    prefixes = getattr(forward_batch, "extend_prefix_lens_cpu", None)
    longest = 0 if mode.is_target_verify() or not prefixes else max(int(p) for p in prefixes)
    if layer.qk_head_dim != 576 or not skips(mode.is_target_verify(), longest):
        return original(self, q, k, v, layer, forward_batch, save_kv_cache, **kwargs)
    real = self.extend_attention_fwd
    self.extend_attention_fwd = lambda *args, **kw: args[3].zero_()
    try:
        return original(self, q, k, v, layer, forward_batch, save_kv_cache, **kwargs)
    finally:
        self.extend_attention_fwd = real
