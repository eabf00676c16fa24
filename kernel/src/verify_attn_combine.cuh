// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "ptx.cuh"
#include "verify_attn_work.cuh"

// The combine kernel: a block makes 8 rows of a request's output, kPiecesEach of its 32 fragments,
// from all partials of that request. Warp w adds up partials w, w+8, ...; the warps' sums meet in
// shared memory.
namespace kdtree {

// Fragments hold dims in the split kernel's order: kDraftApart's has the even ones of each 16
// first.
template <typename T, int kPiecesEach, bool kDraftApart = false>
__global__ void __launch_bounds__(kThreads, 2)
    combine_kernel(const __grid_constant__ kdtree_verify_attn_params p, int groups, int row_tiles,
                   int nsplit, const float2* __restrict__ statistics) {
  __shared__ float4 sums[8][kPiecesEach][32];
  __shared__ float2 warp_statistics[8][8];
  void* const out = target(p);
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  int at = static_cast<int>(blockIdx.x);
  const int piece = at % (kPieces / kPiecesEach) * kPiecesEach;
  at /= kPieces / kPiecesEach;
  const int nt = at % row_tiles;
  at /= row_tiles;
  const int group = at % groups, request = at / groups;

  const RequestShape<kDraftApart> shape(p, request);
  const int first_row = (group * row_tiles + nt) * 8;
  if (out == nullptr || first_row >= shape.tokens * p.heads) {
    ptx::wait_for_previous();  // or this kernel could be over before the split kernel is
    return;
  }
  const BatchUnits<kDraftApart> batch(p, request, lane);
  const int per_split = batch.per_split(nsplit);
  const int first_split = batch.before / per_split;
  const int count = (batch.before + shape.units() - 1) / per_split - first_split + 1;
  const int64_t first_partial = (int64_t{first_split} + request) * groups + group;
  ptx::wait_for_previous();

  // Maximum and sum of each of the 8 rows over all partials.
  const float2* rows = statistics + first_partial * row_tiles * 8 + nt * 8;
  const int64_t stride = int64_t{groups} * row_tiles * 8;
  float2 mine = make_float2(-1e30f, 0.0f);
  for (int s = static_cast<int>(threadIdx.x) / 8; s < count; s += kThreads / 8) {
    const float2 one = rows[s * stride + lane % 8];
    const float highest = fmaxf(mine.x, one.x);
    mine.y =
        mine.y * ptx::exp2_approx(mine.x - highest) + one.y * ptx::exp2_approx(one.x - highest);
    mine.x = highest;
  }
  const auto merge = [](float2 a, float2 b) {
    const float highest = fmaxf(a.x, b.x);
    return make_float2(
        highest, a.y * ptx::exp2_approx(a.x - highest) + b.y * ptx::exp2_approx(b.x - highest));
  };
#pragma unroll
  for (int step = 8; step < 32; step *= 2)
    mine = merge(mine, make_float2(__shfl_xor_sync(0xffffffffu, mine.x, step),
                                   __shfl_xor_sync(0xffffffffu, mine.y, step)));
  if (lane < 8) warp_statistics[warp][lane] = mine;
  __syncthreads();
  const int column = 2 * (lane % 4);
  float2 even = warp_statistics[0][column], odd = warp_statistics[0][column + 1];
#pragma unroll
  for (int w = 1; w < 8; ++w) {
    even = merge(even, warp_statistics[w][column]);
    odd = merge(odd, warp_statistics[w][column + 1]);
  }

  float4 acc[kPiecesEach];
#pragma unroll
  for (int i = 0; i < kPiecesEach; ++i) acc[i] = make_float4(0, 0, 0, 0);
  const float4* fragments = static_cast<const float4*>(p.workspace) +
                            (first_partial * kPieces + piece) * row_tiles * 32 + nt * 32 + lane;
  const int64_t fragment_stride = int64_t{groups} * kPieces * row_tiles * 32;
#pragma unroll 4
  for (int s = warp; s < count; s += 8) {
    const float weight_even = ptx::exp2_approx(rows[s * stride + column].x - even.x);
    const float weight_odd = ptx::exp2_approx(rows[s * stride + column + 1].x - odd.x);
#pragma unroll
    for (int i = 0; i < kPiecesEach; ++i) {
      const float4 one = fragments[s * fragment_stride + i * row_tiles * 32];
      acc[i].x += one.x * weight_even, acc[i].y += one.y * weight_odd;
      acc[i].z += one.z * weight_even, acc[i].w += one.w * weight_odd;
    }
  }
#pragma unroll
  for (int i = 0; i < kPiecesEach; ++i) sums[warp][i][lane] = acc[i];
  __syncthreads();

  // Fragment (w, i) is dims 128 i + 16 w + lane / 4 (+ 8) of rows 2 (lane % 4) and the next; with
  // kDraftApart 2 (lane / 4) (+ 1).
  if (warp >= kPiecesEach) return;
  float4 total = sums[0][warp][lane];
#pragma unroll
  for (int w = 1; w < 8; ++w) {
    const float4 one = sums[w][warp][lane];
    total.x += one.x, total.y += one.y, total.z += one.z, total.w += one.w;
  }
  const int fragment = piece + warp;
  constexpr int kFirst = kDraftApart ? 2 : 1, kSecond = kDraftApart ? 1 : 8;
  const int dim = fragment % 4 * 128 + fragment / 4 * 16 + kFirst * (lane / 4);
  const int64_t rows_total = int64_t{shape.tokens} * p.heads;
#pragma unroll
  for (int odd_row = 0; odd_row < 2; ++odd_row) {
    const int row = first_row + column + odd_row;
    if (row >= rows_total) break;
    const float scale = 1.0f / (odd_row == 1 ? odd.y : even.y);
    T* to = static_cast<T*>(out) + int64_t{shape.first_token + row / p.heads} * p.out_token_stride +
            row % p.heads * p.out_head_stride + dim;
    to[0] = static_cast<T>((odd_row == 1 ? total.y : total.x) * scale);
    to[kSecond] = static_cast<T>((odd_row == 1 ? total.w : total.z) * scale);
  }
}

}  // namespace kdtree
