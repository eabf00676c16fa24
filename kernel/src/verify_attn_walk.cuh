// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <type_traits>

#include "verify_attn_split.cuh"
#include "verify_attn_split_fp8.cuh"

// The split kernel: block (split, group) attends 8 * kTiles query rows to the split's run of KV
// units, request by request. kDraftApart: the pool is e4m3.
namespace kdtree {

template <typename T, int kTiles, bool kDraftApart = false>
__global__ void __launch_bounds__(kThreads, 1)
    split_kernel(const __grid_constant__ kdtree_verify_attn_params p, int groups, int nsplit,
                 float2* statistics) {
  using Layout = std::conditional_t<kDraftApart, Fp8Layout<kTiles>, SharedLayout<kTiles>>;
  extern __shared__ __align__(128) char shared[];
  const void* const out = target(p);
  // In this order: the combine kernel may then read inputs as soon as it runs.
  ptx::wait_for_previous();
  ptx::launch_dependents();
  if (out == nullptr) return;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int group = static_cast<int>(blockIdx.x) % groups,
            split = static_cast<int>(blockIdx.x) / groups;
  const BatchUnits<kDraftApart> batch(p, 0, lane);
  const int per_split = batch.per_split(nsplit);
  const int64_t begin = int64_t{split} * per_split;
  if (begin >= batch.total) return;
  int unit = static_cast<int>(begin);
  int end = batch.total - unit < per_split ? batch.total : unit + per_split;
  const Located<kDraftApart> at(p, unit, lane);
  int request = at.request, first_unit = at.first_unit;
  const int first_row = group * Layout::kRows;
  while (unit < end) {
    const RequestShape<kDraftApart> shape(p, request);
    const int next_unit = first_unit + shape.cost();
    const int last_unit = first_unit + shape.units() < end ? first_unit + shape.units() : end;
    if (unit < last_unit && first_row < shape.tokens * p.heads) {
      const int partial = (split + request) * groups + group;
      // Kept out of registers while they are all needed.
      int4* walk = reinterpret_cast<int4*>(shared + Layout::kWalk);
      if (threadIdx.x == 0) *walk = make_int4(next_unit, 0, request, end);
      if constexpr (kDraftApart) {
        if (threadIdx.x == 0)
          *reinterpret_cast<int2*>(shared + Layout::kUnits) =
              make_int2(unit - first_unit, last_unit - first_unit);
        attend_fp8<T, kTiles>(p, groups, shared);
      } else {
        attend<T, kTiles>(p, request, unit - first_unit, last_unit - first_unit, partial, first_row,
                          shared);
      }
      const float* sums = reinterpret_cast<const float*>(shared + Layout::kRowMax);
      const float* maxima = reinterpret_cast<const float*>(shared + Layout::kMaximum);
      const int row = static_cast<int>(threadIdx.x);
      const int4 at_end = *walk;
      if (row < Layout::kRows)
        statistics[((int64_t{static_cast<int>(blockIdx.x) / groups} + at_end.z) * groups +
                    static_cast<int>(blockIdx.x) % groups) *
                       Layout::kRows +
                   row] = make_float2(maxima[row], sums[row] + sums[row + Layout::kRows] +
                                                       sums[row + 2 * Layout::kRows] +
                                                       sums[row + 3 * Layout::kRows]);
      unit = first_unit = at_end.x;
      request = at_end.z + 1;
      end = at_end.w;
      __syncthreads();
    } else {
      unit = first_unit = next_unit;
      ++request;
    }
  }
}

}  // namespace kdtree
