// SPDX-License-Identifier: Apache-2.0
#include <kdtree/verify_attn.h>
#include <torch/csrc/stable/ops.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "ops.h"

namespace kdtree::op {
namespace {

// Type and scales of the pool.
void check_pool(const Checker& check, const Tensor& q, const MaybeTensor& k_draft,
                const Tensor& kv_pool, double k_scale, double v_scale,
                kdtree_verify_attn_params& p) {
  if (kv_pool.scalar_type() != ScalarType::Float8_e4m3fn)
    return check.type(kv_pool, "kv_pool", {q.scalar_type(), ScalarType::Float8_e4m3fn});
  check.type(q, "q", {ScalarType::BFloat16, ScalarType::Half});
  check.require(k_draft.has_value(), "k_draft", "must be given with a float8 kv_pool", "None");
  for (const auto& [name, scale] : {std::pair{"k_scale", k_scale}, std::pair{"v_scale", v_scale}})
    check.require(std::isfinite(static_cast<float>(scale)) && static_cast<float>(scale) > 0, name,
                  "must be above 0 and finite", scale);
  p.kv_dtype = KDTREE_KV_E4M3;
  p.k_scale = static_cast<float>(k_scale);
  p.v_scale = static_cast<float>(v_scale);
}

}  // namespace

int64_t verify_attn_workspace_bytes(int64_t batch, int64_t draft_tokens, int64_t heads,
                                    const Tensor& like, int64_t nsplit) {
  const Checker check("verify_attn_workspace_bytes", like);
  check.require(batch >= 1 && batch <= KDTREE_MAX_BATCH, "batch", "must be in 1..4096", batch);
  check.require(draft_tokens >= 1 && draft_tokens <= KDTREE_MAX_DRAFT_TOKENS, "draft_tokens",
                "must be in 1..128", draft_tokens);
  check.require(heads >= 1 && heads <= KDTREE_MAX_HEADS, "heads", "must be in 1..128", heads);
  check.require(nsplit >= 0 && nsplit <= INT32_MAX, "nsplit", "must be 0 or more", nsplit);
  if (check.on_cpu()) return 0;
  const torch::stable::accelerator::DeviceGuard guard(like.get_device_index());
  const int64_t bytes = kdtree_verify_attn_workspace_bytes(
      static_cast<int32_t>(batch), static_cast<int32_t>(draft_tokens), static_cast<int32_t>(heads),
      static_cast<int32_t>(nsplit));
  if (bytes < 0) check.status(bytes <= -1000 ? -bytes - 1000 : bytes);
  return bytes;
}

void verify_attn(const Tensor& q, const MaybeTensor& k_draft, const Tensor& out,
                 const Tensor& kv_pool, const Tensor& qo_indptr, const Tensor& kv_indptr,
                 const Tensor& kv_indices, const MaybeTensor& custom_mask,
                 const MaybeTensor& mask_indptr, const MaybeTensor& out_cache_loc,
                 const Tensor& workspace, int64_t draft_tokens, double sm_scale,
                 const MaybeTensor& enable, const MaybeTensor& out_scratch, int64_t nsplit,
                 double k_scale, double v_scale) {
  const Checker check("verify_attn", q);
  kdtree_verify_attn_params p{};
  p.struct_bytes = sizeof p;
  p.dtype = static_cast<int16_t>(check.data_type(q, "q"));
  check.require(q.dim() == 3 && q.size(2) == KDTREE_QK_DIM, "q", "must be [tokens, heads, 576]",
                shape_of(q));
  check.require(q.stride(2) == 1, "q", "must have contiguous elements", q.stride(2));
  const int64_t tokens = q.size(0);
  const int64_t heads = q.size(1);
  check.require(tokens >= 1, "q", "must have at least one token", tokens);
  check.require(heads >= 1 && heads <= KDTREE_MAX_HEADS, "q", "must have 1..128 heads", heads);
  check.require(draft_tokens >= 1 && draft_tokens <= KDTREE_MAX_DRAFT_TOKENS, "draft_tokens",
                "must be in 1..128", draft_tokens);
  check.require(nsplit >= 0 && nsplit <= INT32_MAX, "nsplit", "must be 0 or more", nsplit);

  check.one_dim(kv_indptr, "kv_indptr", 2);
  check.type(kv_indptr, "kv_indptr", {ScalarType::Int});
  p.qo_indptr_bits = check.index(qo_indptr, "qo_indptr", 2);
  const int64_t batch = std::min(qo_indptr.numel(), kv_indptr.numel()) - 1;
  check.require(batch <= KDTREE_MAX_BATCH, "qo_indptr", "must be of at most 4096 requests", batch);
  p.kv_indices_bits = check.index(kv_indices, "kv_indices", 0);

  check.on_device(kv_pool, "kv_pool");
  check_pool(check, q, k_draft, kv_pool, k_scale, v_scale, p);
  const int64_t pool_dims = kv_pool.dim();
  check.require((pool_dims == 2 || (pool_dims == 3 && kv_pool.size(1) == 1)) &&
                    kv_pool.size(0) >= 1 && kv_pool.size(0) <= INT32_MAX &&
                    kv_pool.size(pool_dims - 1) == KDTREE_QK_DIM,
                "kv_pool", "must be [slots, 576] or [slots, 1, 576]", shape_of(kv_pool));
  check.require(kv_pool.stride(pool_dims - 1) == 1, "kv_pool", "must have contiguous elements",
                kv_pool.stride(pool_dims - 1));

  if (k_draft.has_value()) {
    check.on_device(*k_draft, "k_draft");
    check.type(*k_draft, "k_draft", {q.scalar_type()});
    const int64_t dims = k_draft->dim();
    check.require((dims == 2 || (dims == 3 && k_draft->size(1) == 1)) &&
                      k_draft->size(0) == tokens && k_draft->size(dims - 1) == KDTREE_QK_DIM,
                  "k_draft", "must be [tokens, 576] or [tokens, 1, 576] for q's tokens",
                  shape_of(*k_draft));
    check.require(k_draft->stride(dims - 1) == 1, "k_draft", "must have contiguous elements",
                  k_draft->stride(dims - 1));
    p.k_draft_stride = k_draft->stride(0);
  } else {
    check.require(out_cache_loc.has_value(), "out_cache_loc", "must be given where k_draft is None",
                  "None");
    p.out_cache_loc_bits = check.index(*out_cache_loc, "out_cache_loc", tokens);
  }
  if (custom_mask.has_value()) {
    check.one_dim(*custom_mask, "custom_mask", 0);
    check.type(*custom_mask, "custom_mask", {ScalarType::Bool, ScalarType::Byte});
    check.require(mask_indptr.has_value(), "mask_indptr", "must be given with custom_mask", "None");
    check.one_dim(*mask_indptr, "mask_indptr", batch);
    check.type(*mask_indptr, "mask_indptr", {ScalarType::Long});
  }
  if (enable.has_value()) {
    check.one_dim(*enable, "enable", 1);
    check.type(*enable, "enable", {ScalarType::Int});
  }
  p.out_token_stride = check.output(out, "out", q, tokens, heads);
  if (out_scratch.has_value())
    check.require(check.output(*out_scratch, "out_scratch", q, tokens, heads) == p.out_token_stride,
                  "out_scratch", "must have out's strides", out_scratch->stride(0));
  const int64_t needed = verify_attn_workspace_bytes(batch, draft_tokens, heads, q, nsplit);
  check.workspace(workspace, needed);

  p.batch = static_cast<int32_t>(batch);
  p.draft_tokens = static_cast<int32_t>(draft_tokens);
  p.heads = static_cast<int32_t>(heads);
  p.nsplit = static_cast<int32_t>(nsplit);
  p.sm_scale = static_cast<float>(sm_scale);
  p.threads = check.on_cpu() ? static_cast<int32_t>(torch::stable::get_num_threads()) : 0;
  p.q = q.data_ptr();
  p.q_token_stride = q.stride(0);
  p.q_head_stride = q.stride(1);
  p.k_draft = pointer<const void>(k_draft);
  p.kv_pool = kv_pool.data_ptr();
  p.kv_slot_stride = kv_pool.stride(0);
  p.kv_slots = static_cast<int32_t>(kv_pool.size(0));
  p.out = out.data_ptr();
  p.out_head_stride = KDTREE_V_DIM;
  p.out_scratch = pointer<void>(out_scratch);
  p.qo_indptr = qo_indptr.data_ptr();
  p.kv_indptr = pointer<const int32_t>(kv_indptr);
  p.kv_indices = kv_indices.data_ptr();
  p.out_cache_loc = k_draft.has_value() ? nullptr : pointer<const void>(out_cache_loc);
  p.mask = pointer<const uint8_t>(custom_mask);
  p.mask_indptr = custom_mask.has_value() ? pointer<const int64_t>(mask_indptr) : nullptr;
  p.enable = pointer<const int32_t>(enable);
  p.workspace = workspace.data_ptr();
  p.workspace_bytes = workspace.numel();
  launch(check, q, p, kdtree_verify_attn_cpu, kdtree_verify_attn_cuda);
}

}  // namespace kdtree::op
