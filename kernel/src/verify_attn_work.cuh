// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <kdtree/verify_attn.h>

#include <cstdint>

#include "verify_attn_shape.h"

// Who does what, worked out on the device from the index arrays. A unit is kTileRows keys of one
// request; each request has kTakeUpUnits more, in which there is nothing to do. The units of the
// batch, in order, are dealt out to the splits in equal runs. With kDraftApart no unit holds both
// prefix and draft tokens, which are of two types then.
namespace kdtree {

__device__ __forceinline__ int64_t load_index(const void* array, int bits, int64_t at) {
  return bits == 64 ? static_cast<const int64_t*>(array)[at]
                    : static_cast<const int32_t*>(array)[at];
}

// The low 32 bits of an index; slots fit in them.
__device__ __forceinline__ uint32_t load_slot(const void* array, int bits, int64_t at) {
  return static_cast<const uint32_t*>(array)[bits == 64 ? 2 * at : at];
}

template <bool kDraftApart = false>
struct RequestShape {
  int first_token;
  int kv_start;
  int tokens;
  int prefix;

  __device__ __forceinline__ RequestShape(const kdtree_verify_attn_params& p, int b) {
    const int64_t first = load_index(p.qo_indptr, p.qo_indptr_bits, b);
    const int64_t count = load_index(p.qo_indptr, p.qo_indptr_bits, b + 1) - first;
    first_token = static_cast<int>(first);
    tokens = static_cast<int>(count < 0 ? 0 : count > p.draft_tokens ? p.draft_tokens : count);
    kv_start = p.kv_indptr[b];
    const int64_t length = int64_t{p.kv_indptr[b + 1]} - kv_start;
    prefix = static_cast<int>(length < 0 ? 0 : length);
  }
  __device__ __forceinline__ int keys() const { return prefix + tokens; }
  __device__ __forceinline__ int prefix_units() const {
    return static_cast<int>((int64_t{prefix} + kTileRows - 1) / kTileRows);
  }
  __device__ __forceinline__ int units() const {
    if (tokens == 0) return 0;
    return kDraftApart ? prefix_units() + (tokens + kTileRows - 1) / kTileRows
                       : static_cast<int>((int64_t{prefix} + tokens + kTileRows - 1) / kTileRows);
  }
  __device__ __forceinline__ int cost() const { return tokens == 0 ? 0 : units() + kTakeUpUnits; }
};

__device__ __forceinline__ int warp_inclusive_sum(int value, int lane) {
#pragma unroll
  for (int step = 1; step < 32; step *= 2) {
    const int below = __shfl_up_sync(0xffffffffu, value, step);
    if (lane >= step) value += below;
  }
  return value;
}

// Called by whole warps: units of the batch, and of the requests before `b`.
template <bool kDraftApart = false>
struct BatchUnits {
  int total = 0;
  int before = 0;
  __device__ __forceinline__ BatchUnits(const kdtree_verify_attn_params& p, int b, int lane) {
    for (int base = 0; base < p.batch; base += 32) {
      const int units =
          base + lane < p.batch ? RequestShape<kDraftApart>(p, base + lane).cost() : 0;
      total += __reduce_add_sync(0xffffffffu, units);
      before += __reduce_add_sync(0xffffffffu, base + lane < b ? units : 0);
    }
  }
  __device__ __forceinline__ int per_split(int nsplit) const {
    return total == 0 ? 1 : (total + nsplit - 1) / nsplit;
  }
};

// Called by whole warps: the request that holds `unit`, and its first unit. There is one.
template <bool kDraftApart = false>
struct Located {
  int request = 0;
  int first_unit = 0;
  __device__ __forceinline__ Located(const kdtree_verify_attn_params& p, int unit, int lane) {
    for (int base = 0; base < p.batch; base += 32) {
      const int units =
          base + lane < p.batch ? RequestShape<kDraftApart>(p, base + lane).cost() : 0;
      const int end = first_unit + warp_inclusive_sum(units, lane);
      const uint32_t past = __ballot_sync(0xffffffffu, end > unit);
      if (past != 0) {
        const int winner = __ffs(static_cast<int>(past)) - 1;
        request = base + winner;
        first_unit = __shfl_sync(0xffffffffu, end - units, winner);
        return;
      }
      first_unit = __shfl_sync(0xffffffffu, end, 31);
    }
  }
};

// Where the results go, null if nowhere (enum kdtree_enable).
__device__ __forceinline__ void* target(const kdtree_verify_attn_params& p) {
  const int enable = p.enable == nullptr ? KDTREE_ENABLE_OUT : *p.enable;
  if (enable == KDTREE_ENABLE_NOTHING) return nullptr;
  return enable == KDTREE_ENABLE_SCRATCH && p.out_scratch != nullptr ? p.out_scratch : p.out;
}

}  // namespace kdtree
