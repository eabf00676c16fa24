// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "early.cuh"
#include "verify_attn_combine.cuh"
#include "verify_attn_launch.h"
#include "verify_attn_walk.cuh"

namespace kdtree {

template <typename T, int kTiles, bool kDraftApart>
cudaError_t launch_split(const kdtree_verify_attn_params& params, const Shape& shape,
                         float2* statistics, cudaStream_t stream) {
  constexpr int kBytes = kDraftApart ? Fp8Layout<kTiles>::kBytes : SharedLayout<kTiles>::kBytes;
  constexpr auto kKernel = split_kernel<T, kTiles, kDraftApart>;
  const cudaError_t set =
      cudaFuncSetAttribute(kKernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kBytes);
  if (set != cudaSuccess) return set;
  const Launch launch{static_cast<unsigned>(shape.groups * shape.nsplit), kThreads, stream, kBytes};
  return launch_early(kKernel, launch, params, shape.groups, shape.nsplit, statistics);
}

template <typename T, int kPiecesEach, bool kDraftApart>
cudaError_t launch_combine(const kdtree_verify_attn_params& params, const Shape& shape,
                           const float2* statistics, cudaStream_t stream) {
  const int blocks = params.batch * shape.groups * shape.row_tiles * (kPieces / kPiecesEach);
  const Launch launch{static_cast<unsigned>(blocks), kThreads, stream};
  return launch_early(combine_kernel<T, kPiecesEach, kDraftApart>, launch, params, shape.groups,
                      shape.row_tiles, shape.nsplit, statistics);
}

template <typename T, bool kDraftApart>
cudaError_t launch_verify_attn(const kdtree_verify_attn_params& params, const Shape& shape,
                               cudaStream_t stream) {
  auto* statistics = reinterpret_cast<float2*>(static_cast<char*>(params.workspace) +
                                               output_bytes(shape, params.batch));
  cudaError_t error = cudaErrorInvalidValue;
  switch (shape.row_tiles) {
    case 1:
      error = launch_split<T, 1, kDraftApart>(params, shape, statistics, stream);
      break;
    case 2:
      error = launch_split<T, 2, kDraftApart>(params, shape, statistics, stream);
      break;
    case 3:
      error = launch_split<T, 3, kDraftApart>(params, shape, statistics, stream);
      break;
    case 4:
      error = launch_split<T, 4, kDraftApart>(params, shape, statistics, stream);
      break;
    case 5:
      error = launch_split<T, 5, kDraftApart>(params, shape, statistics, stream);
      break;
    default:
      break;
  }
  if (error != cudaSuccess || !kCombine) return error;
  return params.batch < 4 ? launch_combine<T, 1, kDraftApart>(params, shape, statistics, stream)
                          : launch_combine<T, 4, kDraftApart>(params, shape, statistics, stream);
}

}  // namespace kdtree
