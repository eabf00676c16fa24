# SPDX-License-Identifier: Apache-2.0
"""SGLang's own TritonAttnBackend.forward_extend on the CPU (fp16: Triton's interpreter is wrong in bf16): target verify
over an MLA pool with a binary draft tree. Imported by the subprocesses that tests/patch starts."""
import dataclasses
from types import SimpleNamespace

import torch
from sglang.srt.layers.attention.triton_backend import ForwardMetadata, TritonAttnBackend
from sglang.srt.layers.radix_attention import RadixAttention
from sglang.srt.model_executor.forward_batch_info import ForwardMode

try:
    from sglang.kernels.ops.attention.extend_attention import extend_attention_fwd
except ImportError:  # 0.5.15 and older
    from sglang.srt.layers.attention.triton_ops.extend_attention import extend_attention_fwd


class Pool:
    """The calls that forward_extend makes on MLATokenToKVPool; counts writes."""

    def __init__(self, slots: int, dtype: torch.dtype):
        self.rows = torch.randn(slots, 1, 576).to(dtype)
        self.writes = 0

    def get_key_buffer(self, layer_id: int) -> torch.Tensor:
        return self.rows

    def get_value_buffer(self, layer_id: int) -> torch.Tensor:
        return self.rows[..., :512]

    def set_kv_buffer(self, layer, where, k, v, *scales) -> None:
        self.writes += 1
        self.rows[where if isinstance(where, torch.Tensor) else where.loc] = k.to(self.rows.dtype)


class Scene:
    """One layer and one batch; fields may be changed before call()."""

    def __init__(self, batch: int = 2, drafts: int = 5, heads: int = 2, prefix: int = 20, dtype=torch.float16,
                 masked: bool = True, made: bool = False):
        torch.manual_seed(0)
        self.batch_size, self.drafts, self.heads, self.prefix, self.dtype = batch, drafts, heads, prefix, dtype
        tokens = batch * drafts
        self.pool = Pool(560, dtype)
        self.layer = RadixAttention(heads, 576, 0.1, 1, 0, v_head_dim=512)
        self.backend = backend = TritonAttnBackend.__new__(TritonAttnBackend)
        backend.extend_attention_fwd = torch.compiler.disable(extend_attention_fwd)
        backend.token_to_kv_pool, backend.page_size, backend.use_mla, backend.dcp_size = self.pool, 1, True, 1
        backend.enable_deterministic = backend.use_verify_splitkv = False
        backend.allow_bidirectional_attention_in_extend = backend.use_verify_shared_kv = False
        backend.use_dense_fp8_chunked_prefill = False
        backend._translate_kv_loc = backend.dllm_attention = None
        backend.use_sliding_window_kv_pool = False  # 0.5.13
        self.mask = torch.zeros(drafts, prefix + drafts, dtype=torch.bool)
        self.mask[:, :prefix + 1] = True
        for i in range(drafts):
            j = i
            while j > 0:
                self.mask[i, prefix + j] = True
                j = (j - 1) // 2
        fields = {field.name: None for field in dataclasses.fields(ForwardMetadata)}
        fields.update(
            qo_indptr=torch.arange(0, tokens + 1, drafts, dtype=torch.int32),
            kv_indptr=torch.arange(0, batch * prefix + 1, prefix, dtype=torch.int32),
            kv_indices=torch.randperm(400)[:batch * prefix] + 1,
            custom_mask=torch.cat([self.mask.flatten()] * batch) if masked else None,
            mask_indptr=torch.arange(0, batch + 1) * self.mask.numel(), max_extend_len=drafts)
        backend.forward_metadata = ForwardMetadata(**fields)
        self.batch = SimpleNamespace(forward_mode=ForwardMode.TARGET_VERIFY, _attn_output=None, batch_size=batch,
                                     out_cache_loc=torch.arange(450, 450 + tokens), spec_info=None,
                                     token_to_kv_pool=self.pool, mha_one_shot=False, extend_seq_lens_cpu=None,
                                     attn_attend_prefix_cache=None, out_cache_loc_is_physical=False)
        self.q = torch.randn(tokens, heads * 576).to(dtype)
        self.k = torch.randn(tokens, 1, 576).to(dtype)
        self.v = self.k[..., :512].clone()

    def call(self, **keywords) -> torch.Tensor:
        """[tokens, heads, 512] from the backend's forward_extend."""
        out = self.backend.forward_extend(self.q, self.k, self.v, self.layer, self.batch, **keywords)
        return out.view(-1, self.heads, 512)

    def want(self) -> torch.Tensor:
        """The same in fp32, straight from the definition."""
        n, p = self.drafts, self.prefix
        slots = self.backend.forward_metadata.kv_indices.view(self.batch_size, -1)
        seen = self.mask.clone() if self.backend.forward_metadata.custom_mask is not None else torch.cat(
            [torch.ones(n, p, dtype=torch.bool), torch.tril(torch.ones(n, n, dtype=torch.bool))], 1)
        keys = torch.stack([torch.cat([self.pool.rows[s, 0], d])
                            for s, d in zip(slots, self.k.view(self.batch_size, n, 576))]).float()
        scores = torch.einsum("bnhd,bkd->bhnk", self.q.view(self.batch_size, n, self.heads, 576).float(), keys) * 0.1
        weights = scores.masked_fill(~seen, float("-inf")).softmax(-1)
        return torch.einsum("bhnk,bkd->bnhd", weights, keys[..., :512]).reshape(-1, self.heads, 512)

    def error(self, **keywords) -> float:
        """Largest difference of call() to want()."""
        return float((self.call(**keywords).float() - self.want()).abs().max())
