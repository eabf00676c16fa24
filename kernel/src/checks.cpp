// SPDX-License-Identifier: Apache-2.0
#include "checks.h"

#include <cmath>

namespace kdtree {
namespace {

bool aligned(const void* pointer, uintptr_t bytes) {
  return reinterpret_cast<uintptr_t>(pointer) % bytes == 0;
}

bool is_index_bits(int32_t bits) { return bits == 32 || bits == 64; }

int check_dtype(int32_t dtype, Device device) {
  const bool half = dtype == KDTREE_BF16 || dtype == KDTREE_FP16;
  return half || (dtype == KDTREE_FP32 && device == Device::cpu) ? KDTREE_OK : KDTREE_BAD_DTYPE;
}

int check_kv(const kdtree_verify_attn_params& p) {
  if (p.kv_dtype == KDTREE_KV_SAME) return KDTREE_OK;
  if (p.kv_dtype != KDTREE_KV_E4M3 || p.dtype == KDTREE_FP32) return KDTREE_BAD_DTYPE;
  if (p.k_draft == nullptr) return KDTREE_BAD_POINTER;
  const bool good =
      std::isfinite(p.k_scale) && std::isfinite(p.v_scale) && p.k_scale > 0 && p.v_scale > 0;
  return good ? KDTREE_OK : KDTREE_BAD_SCALE;
}

}  // namespace

int64_t element_bytes(int32_t dtype) { return dtype == KDTREE_FP32 ? 4 : 2; }

int check(const kdtree_verify_attn_params& p, Device device) {
  if (p.struct_bytes != sizeof p) return KDTREE_BAD_STRUCT;
  if (const int status = check_dtype(p.dtype, device); status != KDTREE_OK) return status;
  if (p.batch < 1 || p.batch > KDTREE_MAX_BATCH || p.draft_tokens < 1 ||
      p.draft_tokens > KDTREE_MAX_DRAFT_TOKENS || p.heads < 1 || p.heads > KDTREE_MAX_HEADS ||
      p.kv_slots < 1 || p.nsplit < 0 || p.threads < 0)
    return KDTREE_BAD_SHAPE;
  if (!is_index_bits(p.qo_indptr_bits) || !is_index_bits(p.kv_indices_bits))
    return KDTREE_BAD_DTYPE;
  if (p.q == nullptr || p.kv_pool == nullptr || p.qo_indptr == nullptr || p.kv_indptr == nullptr ||
      (p.mask != nullptr && p.mask_indptr == nullptr))
    return KDTREE_BAD_POINTER;
  if (p.k_draft == nullptr) {
    if (p.out_cache_loc == nullptr) return KDTREE_BAD_POINTER;
    if (!is_index_bits(p.out_cache_loc_bits)) return KDTREE_BAD_DTYPE;
  }
  if (!aligned(p.q, 16) || !aligned(p.kv_pool, 16) || !aligned(p.k_draft, 16))
    return KDTREE_BAD_POINTER;
  const int64_t bytes = element_bytes(p.dtype);
  const int64_t kv_bytes = p.kv_dtype == KDTREE_KV_E4M3 ? 1 : bytes;
  if (p.q_token_stride * bytes % 16 != 0 || p.q_head_stride * bytes % 16 != 0 ||
      p.kv_slot_stride * kv_bytes % 16 != 0 ||
      (p.k_draft != nullptr && p.k_draft_stride * bytes % 16 != 0))
    return KDTREE_BAD_STRIDE;
  return check_kv(p);
}

int check(const kdtree_gate_params& p) {
  if (p.struct_bytes != sizeof p) return KDTREE_BAD_STRUCT;
  if (p.batch < 1) return KDTREE_BAD_SHAPE;
  if (!is_index_bits(p.qo_indptr_bits)) return KDTREE_BAD_DTYPE;
  if (p.qo_indptr == nullptr || p.kv_indptr == nullptr || p.gated_qo_indptr == nullptr ||
      p.gated_kv_indptr == nullptr || p.flags == nullptr)
    return KDTREE_BAD_POINTER;
  return check(p.word);
}

int check(const kdtree_gate_word* word) {
  return word == nullptr || !aligned(word, 8) ? KDTREE_BAD_POINTER : KDTREE_OK;
}

int check(const kdtree_compare_params& p, Device device) {
  if (p.struct_bytes != sizeof p) return KDTREE_BAD_STRUCT;
  if (const int status = check_dtype(p.dtype, device); status != KDTREE_OK) return status;
  if (p.batch < 1 || p.tokens < 1 || p.heads < 1 || p.heads > KDTREE_MAX_HEADS ||
      p.tokens % p.batch != 0)
    return KDTREE_BAD_SHAPE;
  if (p.ours == nullptr || p.engines == nullptr || p.kv_indptr == nullptr || p.accum == nullptr ||
      !aligned(p.accum, 8))
    return KDTREE_BAD_POINTER;
  return KDTREE_OK;
}

int check(const kdtree_slots_params& p) {
  if (p.struct_bytes != sizeof p) return KDTREE_BAD_STRUCT;
  if (p.batch < 1 || p.max_slots < 1) return KDTREE_BAD_SHAPE;
  if (!is_index_bits(p.kv_indices_bits)) return KDTREE_BAD_DTYPE;
  if (p.kv_indptr == nullptr || p.counts == nullptr || !aligned(p.counts, 8))
    return KDTREE_BAD_POINTER;
  return KDTREE_OK;
}

int check(const kdtree_moe_table& t) {
  if (t.layers < 1 || t.layers > KDTREE_MOE_MAX_LAYERS || t.experts < 1 ||
      t.experts > KDTREE_MOE_MAX_EXPERTS || t.ranks < 0 || t.ranks > KDTREE_MOE_MAX_RANKS ||
      (t.ranks > 0 && t.experts % t.ranks != 0))
    return KDTREE_BAD_SHAPE;
  return t.head == nullptr || !aligned(t.head, 8) ? KDTREE_BAD_POINTER : KDTREE_OK;
}

int check(const kdtree_moe_count_params& p) {
  if (p.struct_bytes != sizeof p) return KDTREE_BAD_STRUCT;
  if (const int status = check(p.table); status != KDTREE_OK) return status;
  if (p.layer < 0 || p.layer >= p.table.layers || p.tokens < 0 || p.columns < 0 ||
      int64_t{p.tokens} * p.columns > INT32_MAX)
    return KDTREE_BAD_SHAPE;
  if (!is_index_bits(p.ids_bits)) return KDTREE_BAD_DTYPE;
  return p.ids == nullptr && p.tokens > 0 && p.columns > 0 ? KDTREE_BAD_POINTER : KDTREE_OK;
}

int check(const kdtree_moe_table& t, const kdtree_moe_head* copy, int32_t first, int32_t last) {
  if (const int status = check(t); status != KDTREE_OK) return status;
  if (first < 0 || last < first || last >= t.layers) return KDTREE_BAD_SHAPE;
  return copy == nullptr || !aligned(copy, 8) ? KDTREE_BAD_POINTER : KDTREE_OK;
}

}  // namespace kdtree
