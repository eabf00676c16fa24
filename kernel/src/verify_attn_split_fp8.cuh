// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cuda_fp8.h>

#include "verify_attn_split.cuh"

// A block's part of the split kernel where KV is e4m3 (verify_attn_walk.cuh): as attend(), but in
// two phases, each with Q loaded anew.
//
//   Prefix  rows of 576 bytes, gathered by cp.async kStages - 1 tiles ahead; Q is rounded to e4m3.
//           Both lie in registers as fp16, which holds every e4m3 exactly; so do the weights.
//   Draft   rows of type T, at most four tiles a request, loaded when they are needed.
//
// A 32-bit word of e4m3 is four dims in a row, where a fragment of 16-bit elements wants two. So
// the 16 dims of a slice are taken in another order, the same for both operands of a product:
//   K Q^T   prefix: thread (g, tig) has dims 4 tig + {0, 1 | 2, 3}; draft: 4 tig + {0, 2 | 1, 3}
//   V^T P   row g is dim 2 g, row g + 8 is dim 2 g + 1
// Draft rows are stored with the even dims of each slice first, which gives their ldmatrix that
// order. Row strides are odd multiples of 16 bytes: conflict-free.
namespace kdtree {

template <int kTiles>
struct Fp8Layout {
  static constexpr int kRows = 8 * kTiles;
  static constexpr int kStages = 4;
  static constexpr int kRowStride = KDTREE_QK_DIM + 16;
  static constexpr int kStageBytes = kTileRows * kRowStride;
  static constexpr int kDraftStride = 2 * KDTREE_QK_DIM + 16;  // a tile, over the stages
  static constexpr int kWeightStride = 16 * (kTiles | 1);
  static constexpr int kExchange = kStages * kStageBytes;  // as in SharedLayout from here on
  static constexpr int kWeights = kExchange + 4096 * kTiles;
  static constexpr int kRowMax = kWeights + kTileRows * kWeightStride;
  static constexpr int kFactor = kRowMax + 4 * kRows * 4;
  static constexpr int kMaximum = kFactor + kRows * 4;
  static constexpr int kWalk = kMaximum + kRows * 4;
  static constexpr int kUnits = kWalk + 16;  // int2: the request's units [first, end) of this block
  static constexpr int kBytes = kUnits + 16;
  static_assert(kTileRows * kDraftStride <= kExchange, "a draft tile must fit over the stages");
  static_assert(kBytes <= 101376, "sm_120 has 99 KiB a block");
};

// threadIdx.x, but what is derived from it isn't kept in registers from one phase to the next.
__device__ __forceinline__ int opaque_thread() {
  int thread = static_cast<int>(threadIdx.x);
  asm volatile("" : "+r"(thread));
  return thread;
}

// What this thread does in every step: its warp's 16 keys and every 4th slice, then one score of
// its own for each row tile.
struct Own {
  int warp, lane, mt, kq, g, tig;
  explicit __device__ __forceinline__ Own(int thread)
      : warp(thread / 32),
        lane(thread % 32),
        mt(warp & 1),
        kq(warp >> 1),
        g(lane / 4),
        tig(lane % 4) {}
  __device__ __forceinline__ int key() const { return mt * 16 + g + 8 * (kq >> 1); }
  __device__ __forceinline__ int column() const { return 2 * tig + (kq & 1); }
};

template <typename T>
__device__ __forceinline__ float2 to_float2(uint32_t two) {
  const uint16_t bits[2] = {static_cast<uint16_t>(two), static_cast<uint16_t>(two >> 16)};
  T values[2];
  memcpy(values, bits, sizeof values);
  return make_float2(static_cast<float>(values[0]), static_cast<float>(values[1]));
}

// Where the block is.
template <int kTiles>
struct Place {
  int request, unit, end, first_row, partial;
  __device__ __forceinline__ Place(const char* shared, int groups) {
    const int group = static_cast<int>(blockIdx.x) % groups;
    request = reinterpret_cast<const int4*>(shared + Fp8Layout<kTiles>::kWalk)->z;
    const int2 units = *reinterpret_cast<const int2*>(shared + Fp8Layout<kTiles>::kUnits);
    unit = units.x, end = units.y;
    first_row = group * 8 * kTiles;
    partial = (static_cast<int>(blockIdx.x) / groups + request) * groups + group;
  }
};

// Two of q, rounded to e4m3, as fp16.
template <typename T>
__device__ __forceinline__ uint32_t rounded(uint32_t two) {
  uint32_t wide =
      ptx::widen(__nv_cvt_float2_to_fp8x2(to_float2<T>(two), __NV_SATFINITE, __NV_E4M3));
  asm volatile("" : "+r"(wide));  // in one register, not in halves
  return wide;
}

// Q as B fragments: slice 4 ks + kq of row 8 nt + g; rows that are not there are 0.
template <typename T, int kTiles, bool kPrefix>
__device__ __forceinline__ void load_queries(const kdtree_verify_attn_params& p,
                                             const RequestShape<true>& request, int first_row,
                                             const Own& own, uint32_t (&q)[9][kTiles][2]) {
#pragma unroll
  for (int nt = 0; nt < kTiles; ++nt) {
    const int row = first_row + 8 * nt + own.g;
    const bool inside = row < request.tokens * p.heads;
    const T* from = static_cast<const T*>(p.q) + 16 * own.kq + 4 * own.tig;
    if (inside)
      from += int64_t{request.first_token + row / p.heads} * p.q_token_stride +
              row % p.heads * p.q_head_stride;
#pragma unroll
    for (int ks = 0; ks < 9; ++ks) {
      uint2 four = make_uint2(0, 0);
      if (inside) four = *reinterpret_cast<const uint2*>(from + 64 * ks);
      q[ks][nt][0] = kPrefix ? rounded<T>(four.x) : __byte_perm(four.x, four.y, 0x5410);
      q[ks][nt][1] = kPrefix ? rounded<T>(four.y) : __byte_perm(four.x, four.y, 0x7632);
    }
  }
}

// One prefix row of each tile, 8 threads a row.
class PrefixGather {
 public:
  __device__ __forceinline__ PrefixGather(const kdtree_verify_attn_params& p,
                                          const RequestShape<true>& request)
      : p_(p), request_(request) {}

  __device__ __forceinline__ uint32_t slot(int tile) const {
    const int key = tile * kTileRows + row_;
    return key < request_.prefix
               ? load_slot(p_.kv_indices, p_.kv_indices_bits, int64_t{request_.kv_start} + key)
               : 0;
  }

  __device__ __forceinline__ void load(int tile, uint32_t slot, uint32_t to) const {
    const uint32_t last = static_cast<uint32_t>(p_.kv_slots) - 1;
    const char* from = static_cast<const char*>(p_.kv_pool) +
                       int64_t{slot < last ? slot : last} * p_.kv_slot_stride + 16 * chunk_;
    const uint32_t bytes = tile * kTileRows + row_ < request_.prefix ? 16 : 0;
    to += row_ * Fp8Layout<1>::kRowStride + 16 * chunk_;
#pragma unroll
    for (int j = 0; j < 4; ++j) ptx::copy16(to + 128 * j, from + 128 * j, bytes);
    if (chunk_ < 4) ptx::copy16(to + 512, from + 512, bytes);
  }

 private:
  const kdtree_verify_attn_params& p_;
  const RequestShape<true>& request_;
  int row_ = static_cast<int>(threadIdx.x) / 8, chunk_ = static_cast<int>(threadIdx.x) % 8;
};

// The draft rows [32 tile, 32 tile + 32), even dims of each slice first; rows past the last are 0.
template <typename T>
__device__ __forceinline__ void load_draft(const kdtree_verify_attn_params& p,
                                           const RequestShape<true>& request, int tile,
                                           char* shared) {
  const int row = static_cast<int>(threadIdx.x) / 8, token = tile * kTileRows + row;
  const bool inside = token < request.tokens;
  const T* from = static_cast<const T*>(p.k_draft);
  if (inside) from += int64_t{request.first_token + token} * p.k_draft_stride;
  char* to = shared + row * Fp8Layout<1>::kDraftStride;
  for (int slice = static_cast<int>(threadIdx.x) % 8; slice < KDTREE_QK_DIM / 16; slice += 8) {
    uint4 low = make_uint4(0, 0, 0, 0), high = low;
    if (inside) {
      low = *reinterpret_cast<const uint4*>(from + 16 * slice);
      high = *reinterpret_cast<const uint4*>(from + 16 * slice + 8);
    }
    const auto even = [](uint32_t a, uint32_t b) { return __byte_perm(a, b, 0x5410); };
    const auto odd = [](uint32_t a, uint32_t b) { return __byte_perm(a, b, 0x7632); };
    uint4* const at = reinterpret_cast<uint4*>(to + 32 * slice);
    at[0] = make_uint4(even(low.x, low.y), even(low.z, low.w), even(high.x, high.y),
                       even(high.z, high.w));
    at[1] =
        make_uint4(odd(low.x, low.y), odd(low.z, low.w), odd(high.x, high.y), odd(high.z, high.w));
  }
}

// Raw scores of one key to weights, which go to shared memory as T and are added to `sum`. Where
// the maximum has to be raised, sums and O follow. Called by the whole block.
template <typename T, int kTiles>
__device__ __forceinline__ void weigh(const Own& own, char* shared, float (&scores)[kTiles],
                                      uint32_t seen, float scale, float (&o)[4][kTiles][4],
                                      float (&sum)[kTiles]) {
  using Layout = Fp8Layout<kTiles>;
  constexpr int kRows = Layout::kRows;
  float* row_max = reinterpret_cast<float*>(shared + Layout::kRowMax);
  float* factor = reinterpret_cast<float*>(shared + Layout::kFactor);
  float* maxima = reinterpret_cast<float*>(shared + Layout::kMaximum);
  char* weight_to =
      shared + Layout::kWeights + own.key() * Layout::kWeightStride + 2 * own.column();
  float weights[kTiles], maximum[kTiles];
  bool raise = false;
#pragma unroll
  for (int nt = 0; nt < kTiles; ++nt) maximum[nt] = maxima[8 * nt + own.column()];
#pragma unroll
  for (int nt = 0; nt < kTiles; ++nt) {
    scores[nt] = (seen >> nt) & 1 ? scores[nt] * scale : -INFINITY;
    raise |= scores[nt] - maximum[nt] > kRaiseAbove;
    weights[nt] = ptx::exp2_approx(scores[nt] - maximum[nt]);
  }
  store_weights<T, kTiles>(weight_to, weights);
  if (__syncthreads_or(raise)) {
#pragma unroll
    for (int nt = 0; nt < kTiles; ++nt) {
      float highest = scores[nt];
#pragma unroll
      for (int step = 4; step < 32; step *= 2)
        highest = fmaxf(highest, __shfl_xor_sync(0xffffffffu, highest, step));
      if (own.g == 0)
        row_max[(own.mt * 2 + (own.kq >> 1)) * kRows + 8 * nt + own.column()] = highest;
    }
    __syncthreads();
#pragma unroll
    for (int nt = 0; nt < kTiles; ++nt) {
      const float* highest = row_max + 8 * nt + own.column();
      const float raised = fmaxf(
          fmaxf(fmaxf(highest[0], highest[kRows]), fmaxf(highest[2 * kRows], highest[3 * kRows])),
          maximum[nt]);
      const float by = ptx::exp2_approx(maximum[nt] - raised);
      sum[nt] *= by;
      weights[nt] = ptx::exp2_approx(scores[nt] - raised);
      if (own.mt == 0 && own.kq < 2 && own.g == 0) {
        factor[8 * nt + own.column()] = by;
        maxima[8 * nt + own.column()] = raised;
      }
    }
    store_weights<T, kTiles>(weight_to, weights);
    __syncthreads();
#pragma unroll
    for (int nt = 0; nt < kTiles; ++nt) {
      const float2 by = *reinterpret_cast<const float2*>(factor + 8 * nt + 2 * own.tig);
#pragma unroll
      for (int i = 0; i < 4; ++i)
        o[i][nt][0] *= by.x, o[i][nt][1] *= by.y, o[i][nt][2] *= by.x, o[i][nt][3] *= by.y;
    }
  }
#pragma unroll
  for (int nt = 0; nt < kTiles; ++nt) sum[nt] += weights[nt];
}

// This warp's share of K Q^T goes to the others, and theirs of this thread's own scores come back.
template <int kTiles>
__device__ __forceinline__ void exchange(const Own& own, char* shared, const float (&s)[kTiles][4],
                                         float (&scores)[kTiles]) {
  float* at = reinterpret_cast<float*>(shared + Fp8Layout<kTiles>::kExchange);
#pragma unroll
  for (int c = 0; c < 4; ++c)
    exchange_write<kTiles>(at + ((own.mt * 4 + own.kq) * 4 + c) * 32 * kTiles, own.lane, s, c);
  __syncthreads();
#pragma unroll
  for (int nt = 0; nt < kTiles; ++nt) scores[nt] = 0;
#pragma unroll
  for (int part = 0; part < 4; ++part)
    exchange_add<kTiles>(at + ((own.mt * 4 + part) * 4 + own.kq) * 32 * kTiles, own.lane, scores);
}

// Weights of 16 keys as B fragments.
template <int kTiles>
__device__ __forceinline__ void load_weights(const Own& own, uint32_t base, int ks,
                                             uint32_t (&b)[kTiles][2]) {
  using Layout = Fp8Layout<kTiles>;
  const uint32_t from =
      base + Layout::kWeights + (ks * 16 + (own.lane & 15)) * Layout::kWeightStride;
#pragma unroll
  for (int nt = 0; nt < kTiles; ++nt) ptx::load_matrix_x2_trans(b[nt], from + 16 * nt);
}

// A step over 32 prefix keys that lie in shared memory at `stage`.
template <int kTiles>
__device__ __forceinline__ void prefix_scores(const Own& own, uint32_t stage,
                                              const uint32_t (&q)[9][kTiles][2],
                                              float (&s)[kTiles][4]) {
  const uint32_t from = stage + (own.mt * 16 + (own.lane & 15)) * Fp8Layout<kTiles>::kRowStride +
                        own.kq * 16 + (own.lane >> 4) * 64;
  const auto add = [&](uint32_t upper, uint32_t lower, int ks) {
    const uint32_t a[4] = {ptx::widen(upper), ptx::widen(lower), ptx::widen(upper >> 16),
                           ptx::widen(lower >> 16)};
#pragma unroll
    for (int nt = 0; nt < kTiles; ++nt) ptx::mma<__half>(s[nt], a, q[ks][nt][0], q[ks][nt][1]);
  };
#pragma unroll
  for (int ks = 0; ks < 8; ks += 2) {
    uint32_t r[4];
    ptx::load_matrix_x4(r, from + 64 * ks);
    add(r[0], r[1], ks);
    add(r[2], r[3], ks + 1);
  }
  uint32_t r[2];
  ptx::load_matrix_x2(r, from + 512);
  add(r[0], r[1], 8);
}

template <int kTiles>
__device__ __forceinline__ void prefix_values(const Own& own, uint32_t base, uint32_t stage,
                                              float (&o)[4][kTiles][4]) {
  const uint32_t from = stage + (own.lane & 15) * Fp8Layout<kTiles>::kRowStride + own.warp * 16 +
                        (own.lane >> 4) * 128;
#pragma unroll
  for (int ks = 0; ks < 2; ++ks) {
    uint32_t b[kTiles][2];
    load_weights<kTiles>(own, base, ks, b);
#pragma unroll
    for (int i = 0; i < 4; i += 2) {
      uint32_t r[4];
      ptx::load_matrix_x4_trans(r, from + ks * 16 * Fp8Layout<kTiles>::kRowStride + i * 128);
#pragma unroll
      for (int of = 0; of < 2; ++of) {
        // Bytes: two dims of one key, then of the next; wanted: two keys of one dim.
        const uint32_t low = __byte_perm(r[2 * of], 0, 0x3120),
                       high = __byte_perm(r[2 * of + 1], 0, 0x3120);
        const uint32_t a[4] = {ptx::widen(low), ptx::widen(low >> 16), ptx::widen(high),
                               ptx::widen(high >> 16)};
#pragma unroll
        for (int nt = 0; nt < kTiles; ++nt) ptx::mma<__half>(o[i + of][nt], a, b[nt][0], b[nt][1]);
      }
    }
  }
}

template <typename T, int kTiles>
__device__ __forceinline__ void draft_scores(const Own& own, uint32_t base,
                                             const uint32_t (&q)[9][kTiles][2],
                                             float (&s)[kTiles][4]) {
  const uint32_t from = base + (own.mt * 16 + (own.lane & 15)) * Fp8Layout<kTiles>::kDraftStride +
                        own.kq * 32 + (own.lane >> 4) * 16;
#pragma unroll
  for (int ks = 0; ks < 9; ++ks) {
    uint32_t a[4];
    ptx::load_matrix_x4(a, from + 128 * ks);
#pragma unroll
    for (int nt = 0; nt < kTiles; ++nt) ptx::mma<T>(s[nt], a, q[ks][nt][0], q[ks][nt][1]);
  }
}

template <typename T, int kTiles>
__device__ __forceinline__ void draft_values(const Own& own, uint32_t base,
                                             float (&o)[4][kTiles][4]) {
  const uint32_t from = base +
                        ((own.lane & 7) + (own.lane >> 4) * 8) * Fp8Layout<kTiles>::kDraftStride +
                        own.warp * 32 + ((own.lane >> 3) & 1) * 16;
#pragma unroll
  for (int ks = 0; ks < 2; ++ks) {
    uint32_t b[kTiles][2];
    load_weights<kTiles>(own, base, ks, b);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      uint32_t a[4];
      ptx::load_matrix_x4_trans(a, from + ks * 16 * Fp8Layout<kTiles>::kDraftStride + i * 256);
#pragma unroll
      for (int nt = 0; nt < kTiles; ++nt) ptx::mma<T>(o[i][nt], a, b[nt][0], b[nt][1]);
    }
  }
}

template <int kTiles>
__device__ __forceinline__ void clear(float (&s)[kTiles][4]) {
#pragma unroll
  for (int nt = 0; nt < kTiles; ++nt) s[nt][0] = s[nt][1] = s[nt][2] = s[nt][3] = 0;
}

// The block's prefix tiles, if there are any; then O times v_scale.
template <typename T, int kTiles>
__device__ __forceinline__ void attend_prefix(const kdtree_verify_attn_params& p, int groups,
                                              char* shared, float (&o)[4][kTiles][4],
                                              float (&sum)[kTiles]) {
  using Layout = Fp8Layout<kTiles>;
  const Own own(opaque_thread());
  const Place<kTiles> place(shared, groups);
  const RequestShape<true> request(p, place.request);
  const int units = request.prefix_units();
  int tile = place.unit;
  const int end = place.end < units ? place.end : units;
  if (tile >= end) return;
  constexpr int kAhead = Layout::kStages - 1;
  const uint32_t base = ptx::shared_address(shared);
  const PrefixGather gather(p, request);
  uint32_t slots[kAhead];
#pragma unroll
  for (int i = 0; i < kAhead; ++i) slots[i] = tile + i < end ? gather.slot(tile + i) : 0;
#pragma unroll
  for (int i = 0; i < kAhead; ++i) {
    if (tile + i < end) gather.load(tile + i, slots[i], base + i * Layout::kStageBytes);
    ptx::copy_commit();
  }
  uint32_t next_slot = tile + kAhead < end ? gather.slot(tile + kAhead) : 0;
  uint32_t q[9][kTiles][2];
  load_queries<T, kTiles, true>(p, request, place.first_row, own, q);
  const float scale = p.sm_scale * p.k_scale * 1.4426950408889634f;
  uint32_t stage = 0, to = kAhead * Layout::kStageBytes;
  const auto advance = [](uint32_t& at) {
    at = at == kAhead * Layout::kStageBytes ? 0 : at + Layout::kStageBytes;
  };

#pragma unroll 1
  for (; tile < end; ++tile) {
    ptx::copy_wait<kAhead - 1>();
    __syncthreads();  // this tile is here, and the stage of the one before is read out
    if (tile + kAhead < end) {
      gather.load(tile + kAhead, next_slot, base + to);
      if (tile + kAhead + 1 < end) next_slot = gather.slot(tile + kAhead + 1);
    }
    ptx::copy_commit();
    const uint32_t seen = tile * kTileRows + own.key() < request.prefix ? ~0u : 0;
    float scores[kTiles];
    {
      float s[kTiles][4];
      clear<kTiles>(s);
      prefix_scores<kTiles>(own, base + stage, q, s);
      exchange<kTiles>(own, shared, s, scores);
    }
    weigh<__half, kTiles>(own, shared, scores, seen, scale, o, sum);
    prefix_values<kTiles>(own, base, base + stage, o);
    advance(stage);
    advance(to);
  }
#pragma unroll
  for (int i = 0; i < 4; ++i)
#pragma unroll
    for (int nt = 0; nt < kTiles; ++nt)
#pragma unroll
      for (int c = 0; c < 4; ++c) o[i][nt][c] *= p.v_scale;
}

// The block's draft tiles, if there are any.
template <typename T, int kTiles>
__device__ __forceinline__ void attend_draft(const kdtree_verify_attn_params& p, int groups,
                                             char* shared, float (&o)[4][kTiles][4],
                                             float (&sum)[kTiles]) {
  const Own own(opaque_thread());
  const Place<kTiles> place(shared, groups);
  const RequestShape<true> request(p, place.request);
  const int units = request.prefix_units(), end = place.end - units;
  int tile = place.unit > units ? place.unit - units : 0;
  if (tile >= end) return;
  const uint32_t base = ptx::shared_address(shared);
  uint32_t q[9][kTiles][2];
  load_queries<T, kTiles, false>(p, request, place.first_row, own, q);
  const float scale = p.sm_scale * 1.4426950408889634f;
#pragma unroll 1
  for (; tile < end; ++tile) {
    ptx::copy_wait<0>();
    __syncthreads();  // what lay there before is read out
    load_draft<T>(p, request, tile, shared);
    __syncthreads();
    const uint32_t seen = visible_bits<kTiles>(p, request, place.request,
                                               request.prefix + tile * kTileRows + own.key(),
                                               place.first_row + own.column());
    float scores[kTiles];
    {
      float s[kTiles][4];
      clear<kTiles>(s);
      draft_scores<T, kTiles>(own, base, q, s);
      exchange<kTiles>(own, shared, s, scores);
    }
    weigh<T, kTiles>(own, shared, scores, seen, scale, o, sum);
    draft_values<T, kTiles>(own, base, o);
  }
}

// One request's part of the block's run: the units that kUnits names, of the request that kWalk
// names, to the block's partial for it. What is not needed in the loops is worked out anew after
// them: every register counts there.
template <typename T, int kTiles>
__device__ __forceinline__ void attend_fp8(const kdtree_verify_attn_params& p, int groups,
                                           char* shared) {
  using Layout = Fp8Layout<kTiles>;
  float* row_max = reinterpret_cast<float*>(shared + Layout::kRowMax);
  float* maxima = reinterpret_cast<float*>(shared + Layout::kMaximum);
  if (threadIdx.x < Layout::kRows) maxima[threadIdx.x] = kNoMaximum;
  float o[4][kTiles][4], sum[kTiles];
#pragma unroll
  for (int i = 0; i < 4; ++i) clear<kTiles>(o[i]);
#pragma unroll
  for (int nt = 0; nt < kTiles; ++nt) sum[nt] = 0;

  __syncthreads();  // kWalk and kUnits are there
  attend_prefix<T, kTiles>(p, groups, shared, o, sum);
  attend_draft<T, kTiles>(p, groups, shared, o, sum);

  // The partial: O in fragment order, then each row's maximum and sum.
  const Own own(opaque_thread());
  float4* out = static_cast<float4*>(p.workspace) +
                (int64_t{Place<kTiles>(shared, groups).partial} * 8 + own.warp) * 4 * kTiles * 32 +
                own.lane;
#pragma unroll
  for (int i = 0; i < 4; ++i)
#pragma unroll
    for (int nt = 0; nt < kTiles; ++nt)
      out[(i * kTiles + nt) * 32] = make_float4(o[i][nt][0], o[i][nt][1], o[i][nt][2], o[i][nt][3]);
#pragma unroll
  for (int nt = 0; nt < kTiles; ++nt) {
#pragma unroll
    for (int step = 4; step < 32; step *= 2) sum[nt] += __shfl_xor_sync(0xffffffffu, sum[nt], step);
    if (own.g == 0)
      row_max[(own.mt * 2 + (own.kq >> 1)) * Layout::kRows + 8 * nt + own.column()] = sum[nt];
  }
  __syncthreads();
}

}  // namespace kdtree
