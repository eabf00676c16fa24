// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "ptx.cuh"
#include "verify_attn_work.cuh"

// A block's part of the split kernel (verify_attn_walk.cuh) where KV is of q's type: 8 * kTiles
// query rows attend a run of one request's KV units.
//
// Per step of 32 KV rows, in shared memory once for everything (a key's first 512 elements are its
// value):
//   S^T[32 x rows] = K Q^T    warp (mt, kq): 16 keys, every 4th 16-wide slice of the 576; Q lives
//   in registers exchange                  the four partial sums of a score meet; each thread then
//   owns kTiles scores of one key softmax                   against a maximum that is raised only
//   when a score exceeds it by 2^8 (then P and O are
//                             redone in the new scale): the usual step needs no reduction, just one
//                             vote
//   O^T[512 x rows] += V^T P  warp w: dims [16w, 16w+16) of each 128; O lives in registers
// The next tile's rows are gathered by cp.async meanwhile. Rows are 1152 bytes apart and 16-byte
// chunks XORed with row % 8 within each 128 bytes, which makes every ldmatrix conflict-free and
// every address a constant from one base.
namespace kdtree {

// For benchmarks only, which build with one of these to see what a part costs: 1 no loads after the
// second tile, 2 no K Q^T, 4 no V^T P, 8 no combine. Results are wrong.
#ifndef KDTREE_ABLATE
#define KDTREE_ABLATE 0
#endif
constexpr bool kLoads = (KDTREE_ABLATE & 1) == 0, kScores = (KDTREE_ABLATE & 2) == 0;
constexpr bool kValues = (KDTREE_ABLATE & 4) == 0, kCombine = (KDTREE_ABLATE & 8) == 0;

// Attempts that wait for a GPU (kernel/bench/attempts.sh): 1 L2 prefetch of the tile after next, 2
// the same, each group for every other tile. Results are right.
#ifndef KDTREE_ATTEMPT
#define KDTREE_ATTEMPT 0
#endif
constexpr bool kPrefetch = KDTREE_ATTEMPT != 0, kPrefetchShared = KDTREE_ATTEMPT == 2;

constexpr float kNoMaximum = -1e30f;  // finite: differences of maxima stay numbers
constexpr float kRaiseAbove = 8.0f;   // log2 of the largest weight that is let through
constexpr int kTileBytes = kTileRows * kRowBytes;

template <int kTiles>
struct SharedLayout {
  static constexpr int kRows = 8 * kTiles;
  static constexpr int kWeightStride = 16 * (kTiles | 1);  // bytes; odd in 16s: conflict-free
  static constexpr int kExchange = 2 * kTileBytes;  // float [2 mt][4 kq][4 c][32 lanes * kTiles]
  static constexpr int kWeights = kExchange + 4096 * kTiles;
  static constexpr int kRowMax = kWeights + kTileRows * kWeightStride;  // float [4][kRows]
  static constexpr int kFactor = kRowMax + 4 * kRows * 4;               // float [kRows]
  static constexpr int kMaximum = kFactor + kRows * 4;                  // float [kRows]
  static constexpr int kWalk = kMaximum + kRows * 4;  // int4: where the block is in its run
  static constexpr int kBytes = kWalk + 16;
  static constexpr int kQueries =
      kTileBytes;  // T [kRows][576] while it is loaded: over stage 1 and the exchange
  static_assert(kQueries + kRows * kRowBytes <= kWeights, "queries must fit where they are staged");
  static_assert(kBytes <= 101376, "sm_120 has 99 KiB a block");
};

template <int kTiles>
__device__ __forceinline__ void exchange_write(float* to, int lane, const float (&s)[kTiles][4],
                                               int c) {
  int nt = 0;
  if constexpr (kTiles >= 4) {
    *reinterpret_cast<float4*>(to + 4 * lane) = make_float4(s[0][c], s[1][c], s[2][c], s[3][c]);
    nt = 4;
  } else if constexpr (kTiles >= 2) {
    *reinterpret_cast<float2*>(to + 2 * lane) = make_float2(s[0][c], s[1][c]);
    nt = 2;
  }
  if constexpr (kTiles % 2 == 1) to[32 * nt + lane] = s[kTiles - 1][c];
}

template <int kTiles>
__device__ __forceinline__ void exchange_add(const float* from, int lane, float (&s)[kTiles]) {
  int nt = 0;
  if constexpr (kTiles >= 4) {
    const float4 v = *reinterpret_cast<const float4*>(from + 4 * lane);
    s[0] += v.x, s[1] += v.y, s[2] += v.z, s[3] += v.w;
    nt = 4;
  } else if constexpr (kTiles >= 2) {
    const float2 v = *reinterpret_cast<const float2*>(from + 2 * lane);
    s[0] += v.x, s[1] += v.y;
    nt = 2;
  }
  if constexpr (kTiles % 2 == 1) s[kTiles - 1] += from[32 * nt + lane];
}

// The key that this thread helps to load in each tile: 8 threads a row.
template <typename T>
class RowGather {
 public:
  __device__ __forceinline__ RowGather(const kdtree_verify_attn_params& p,
                                       const RequestShape<>& request, int row)
      : p_(p), request_(request), row_(row) {}

  // Slot of the tile's row, read early; nothing to read for rows that don't come from the pool.
  __device__ __forceinline__ uint32_t slot(int tile) const {
    const int key = tile * kTileRows + row_;
    const bool draft = key >= request_.prefix;
    const void* array = draft ? p_.out_cache_loc : p_.kv_indices;
    const int bits = draft ? p_.out_cache_loc_bits : p_.kv_indices_bits;
    const int64_t at = draft ? int64_t{request_.first_token} + (key - request_.prefix)
                             : int64_t{request_.kv_start} + key;
    uint32_t slot = 0;
    if (!draft || (p_.k_draft == nullptr && key < request_.keys()))
      slot = load_slot(array, bits, at);
    return slot;
  }

  __device__ __forceinline__ const char* pool_row(uint32_t slot) const {
    const uint32_t last = static_cast<uint32_t>(p_.kv_slots) - 1;
    return reinterpret_cast<const char*>(static_cast<const T*>(p_.kv_pool) +
                                         int64_t{slot < last ? slot : last} * p_.kv_slot_stride);
  }

  // Asks for the tile's row, 9 lines, to be brought to L2; nothing for draft tokens.
  __device__ __forceinline__ void prefetch(int tile, uint32_t slot, int chunk) const {
    if (tile * kTileRows + row_ >= request_.prefix) return;
    const char* from = pool_row(slot) + 128 * chunk;
    ptx::prefetch_l2(from);
    if (chunk == 0) ptx::prefetch_l2(from + 1024);
  }

  __device__ __forceinline__ void load(int tile, uint32_t slot, uint32_t to, int chunk) const {
    const int key = tile * kTileRows + row_;
    const char* from = pool_row(slot);
    if (key >= request_.prefix && p_.k_draft != nullptr && key < request_.keys())
      from = reinterpret_cast<const char*>(
          static_cast<const T*>(p_.k_draft) +
          (int64_t{request_.first_token} + (key - request_.prefix)) * p_.k_draft_stride);
    const uint32_t bytes = key < request_.keys() ? 16 : 0;
    from += 16 * chunk;
    to += row_ * kRowBytes + ((chunk ^ (row_ & 7)) * 16);
#pragma unroll
    for (int j = 0; j < kRowBytes / 128; ++j) ptx::copy16(to + 128 * j, from + 128 * j, bytes);
    ptx::copy_commit();
  }

 private:
  const kdtree_verify_attn_params& p_;
  const RequestShape<>& request_;
  int row_;
};

// Bit nt: whether the query at column `column` + 8 nt of this block sees key.
template <int kTiles, bool kDraftApart>
__device__ __forceinline__ uint32_t visible_bits(const kdtree_verify_attn_params& p,
                                                 const RequestShape<kDraftApart>& request,
                                                 int request_index, int key, int first_row) {
  if (key < request.prefix) return ~0u;
  const int draft = key - request.prefix;
  if (draft >= request.tokens) return 0;
  uint32_t bits = 0;
#pragma unroll
  for (int nt = 0; nt < kTiles; ++nt) {
    const int token = (first_row + 8 * nt) / p.heads;
    if (token >= request.tokens) continue;
    const bool sees =
        p.mask == nullptr
            ? draft <= token
            : p.mask[p.mask_indptr[request_index] + int64_t{token} * request.keys() + key] != 0;
    bits |= static_cast<uint32_t>(sees) << nt;
  }
  return bits;
}

template <typename T, int kTiles>
__device__ __forceinline__ void store_weights(char* to, const float (&weights)[kTiles]) {
#pragma unroll
  for (int nt = 0; nt < kTiles; ++nt) {
    if constexpr (sizeof(T) == 2) *reinterpret_cast<T*>(to + 16 * nt) = static_cast<T>(weights[nt]);
  }
}

// One request's part of the block's run: units [unit, end) of it, result to partial `partial`.
template <typename T, int kTiles>
__device__ __forceinline__ void attend(const kdtree_verify_attn_params& p, int request_index,
                                       int unit, int end, int partial, int first_row,
                                       char* shared) {
  using Layout = SharedLayout<kTiles>;
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  const int mt = warp & 1, kq = warp >> 1;
  const int g = lane / 4, tig = lane % 4;
  const int load_row = static_cast<int>(threadIdx.x) / 8, chunk = lane % 8;
  const RequestShape<> request(p, request_index);
  const uint32_t base = ptx::shared_address(shared);

  // Q, then the first tile.
  const int rows = request.tokens * p.heads;
#pragma unroll
  for (int pass = 0; pass < (Layout::kRows + 31) / 32; ++pass) {
    const int row = pass * 32 + load_row;
    if (row < Layout::kRows) {
      const int at = first_row + row;
      const bool inside = at < rows;
      const int token = inside ? at / p.heads : 0, head = inside ? at % p.heads : 0;
      const char* from =
          reinterpret_cast<const char*>(static_cast<const T*>(p.q) +
                                        int64_t{request.first_token + token} * p.q_token_stride +
                                        head * p.q_head_stride) +
          16 * chunk;
      const uint32_t to = base + Layout::kQueries + row * kRowBytes + ((chunk ^ (row & 7)) * 16);
#pragma unroll
      for (int j = 0; j < kRowBytes / 128; ++j)
        ptx::copy16(to + 128 * j, from + 128 * j, inside ? 16 : 0);
    }
  }
  ptx::copy_commit();
  const RowGather<T> gather(p, request, load_row);
  gather.load(unit, gather.slot(unit), base, chunk);
  uint32_t next_slot = unit + 1 < end ? gather.slot(unit + 1) : 0;
  uint32_t later_slot = kPrefetch && unit + 2 < end ? gather.slot(unit + 2) : 0;
  ptx::copy_wait<1>();
  __syncthreads();

  uint32_t q[9][kTiles][2];
  {
    const uint32_t from = base + Layout::kQueries + (lane & 7) * kRowBytes +
                          (((2 * kq + ((lane >> 3) & 1)) ^ (lane & 7)) * 16);
#pragma unroll
    for (int ks = 0; ks < 9; ++ks)
#pragma unroll
      for (int nt = 0; nt < kTiles; ++nt)
        ptx::load_matrix_x2(q[ks][nt], from + nt * 8 * kRowBytes + ks * 128);
  }
  __syncthreads();

  float o[4][kTiles][4];
#pragma unroll
  for (int i = 0; i < 4; ++i)
#pragma unroll
    for (int nt = 0; nt < kTiles; ++nt)
#pragma unroll
      for (int c = 0; c < 4; ++c) o[i][nt][c] = 0;
  float sum[kTiles];
#pragma unroll
  for (int nt = 0; nt < kTiles; ++nt) sum[nt] = 0;

  const float scale = p.sm_scale * 1.4426950408889634f;
  const int own_key = mt * 16 + g + 8 * (kq >> 1);
  const int own_column = 2 * tig + (kq & 1);
  const uint32_t key_from =
      base + (mt * 16 + (lane & 15)) * kRowBytes + (((2 * kq + (lane >> 4)) ^ (lane & 7)) * 16);
  const uint32_t value_from = base + ((lane & 7) + (lane >> 4) * 8) * kRowBytes +
                              (warp >> 2) * 128 +
                              (((2 * (warp & 3) + ((lane >> 3) & 1)) ^ (lane & 7)) * 16);
  const uint32_t weight_from = base + Layout::kWeights + (lane & 15) * Layout::kWeightStride;
  float* exchange = reinterpret_cast<float*>(shared + Layout::kExchange);
  float* row_max = reinterpret_cast<float*>(shared + Layout::kRowMax);
  float* factor = reinterpret_cast<float*>(shared + Layout::kFactor);
  float* maxima = reinterpret_cast<float*>(shared + Layout::kMaximum);
  if (threadIdx.x < Layout::kRows) maxima[threadIdx.x] = kNoMaximum;
  char* weight_to = shared + Layout::kWeights + own_key * Layout::kWeightStride + 2 * own_column;
  uint32_t stage = 0;

#pragma unroll 1
  for (int tile = unit; tile < end; ++tile, stage ^= kTileBytes) {
    ptx::copy_wait<0>();
    __syncthreads();  // this tile is here, and the other stage is read out
    if (tile + 1 < end && (kLoads || tile == unit)) {
      gather.load(tile + 1, next_slot, base + (stage ^ kTileBytes), chunk);
      if constexpr (kPrefetch) {
        const bool ours = !kPrefetchShared || static_cast<int>(blockIdx.x + tile) % 2 == 0;
        if (tile + 2 < end && ours) gather.prefetch(tile + 2, later_slot, chunk);
        next_slot = later_slot;
        if (tile + 3 < end) later_slot = gather.slot(tile + 3);
      } else if (tile + 2 < end) {
        next_slot = gather.slot(tile + 2);
      }
    }
    uint32_t seen = ~0u;
    if ((tile + 1) * kTileRows > request.prefix)
      seen = visible_bits<kTiles>(p, request, request_index, tile * kTileRows + own_key,
                                  first_row + own_column);

    float scores[kTiles];
    {
      float s[kTiles][4];
#pragma unroll
      for (int nt = 0; nt < kTiles; ++nt) s[nt][0] = s[nt][1] = s[nt][2] = s[nt][3] = 0;
#pragma unroll
      for (int ks = 0; ks < 9; ++ks) {
        uint32_t a[4];
        ptx::load_matrix_x4(a, key_from + stage + ks * 128);
#pragma unroll
        for (int nt = 0; nt < kTiles; ++nt)
          if constexpr (kScores) ptx::mma<T>(s[nt], a, q[ks][nt][0], q[ks][nt][1]);
      }
#pragma unroll
      for (int c = 0; c < 4; ++c)
        exchange_write<kTiles>(exchange + ((mt * 4 + kq) * 4 + c) * 32 * kTiles, lane, s, c);
    }
    __syncthreads();
#pragma unroll
    for (int nt = 0; nt < kTiles; ++nt) scores[nt] = 0;
#pragma unroll
    for (int part = 0; part < 4; ++part)
      exchange_add<kTiles>(exchange + ((mt * 4 + part) * 4 + kq) * 32 * kTiles, lane, scores);

    float weights[kTiles], maximum[kTiles];
    bool raise = false;
#pragma unroll
    for (int nt = 0; nt < kTiles; ++nt) maximum[nt] = maxima[8 * nt + own_column];
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
        if (g == 0) row_max[(mt * 2 + (kq >> 1)) * Layout::kRows + 8 * nt + own_column] = highest;
      }
      __syncthreads();
#pragma unroll
      for (int nt = 0; nt < kTiles; ++nt) {
        const float* highest = row_max + 8 * nt + own_column;
        const float raised =
            fmaxf(fmaxf(fmaxf(highest[0], highest[Layout::kRows]),
                        fmaxf(highest[2 * Layout::kRows], highest[3 * Layout::kRows])),
                  maximum[nt]);
        const float by = ptx::exp2_approx(maximum[nt] - raised);
        sum[nt] *= by;
        weights[nt] = ptx::exp2_approx(scores[nt] - raised);
        if (mt == 0 && kq < 2 && g == 0) {
          factor[8 * nt + own_column] = by;
          maxima[8 * nt + own_column] = raised;
        }
      }
      store_weights<T, kTiles>(weight_to, weights);
      __syncthreads();
#pragma unroll
      for (int nt = 0; nt < kTiles; ++nt) {
        const float2 by = *reinterpret_cast<const float2*>(factor + 8 * nt + 2 * tig);
#pragma unroll
        for (int i = 0; i < 4; ++i)
          o[i][nt][0] *= by.x, o[i][nt][1] *= by.y, o[i][nt][2] *= by.x, o[i][nt][3] *= by.y;
      }
    }
#pragma unroll
    for (int nt = 0; nt < kTiles; ++nt) sum[nt] += weights[nt];

#pragma unroll
    for (int ks = 0; ks < 2; ++ks) {
      uint32_t b[kTiles][2];
#pragma unroll
      for (int nt = 0; nt < kTiles; ++nt)
        ptx::load_matrix_x2_trans(b[nt], weight_from + ks * 16 * Layout::kWeightStride + 16 * nt);
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        uint32_t a[4];
        ptx::load_matrix_x4_trans(a, value_from + stage + ks * 16 * kRowBytes + i * 256);
#pragma unroll
        for (int nt = 0; nt < kTiles; ++nt)
          if constexpr (kValues) ptx::mma<T>(o[i][nt], a, b[nt][0], b[nt][1]);
      }
    }
  }

  // The partial: O in fragment order, then each row's maximum and sum.
  float4* out =
      static_cast<float4*>(p.workspace) + (int64_t{partial} * 8 + warp) * 4 * kTiles * 32 + lane;
#pragma unroll
  for (int i = 0; i < 4; ++i)
#pragma unroll
    for (int nt = 0; nt < kTiles; ++nt)
      out[(i * kTiles + nt) * 32] = make_float4(o[i][nt][0], o[i][nt][1], o[i][nt][2], o[i][nt][3]);
#pragma unroll
  for (int nt = 0; nt < kTiles; ++nt) {
#pragma unroll
    for (int step = 4; step < 32; step *= 2) sum[nt] += __shfl_xor_sync(0xffffffffu, sum[nt], step);
    if (g == 0) row_max[(mt * 2 + (kq >> 1)) * Layout::kRows + 8 * nt + own_column] = sum[nt];
  }
  __syncthreads();
}

}  // namespace kdtree
