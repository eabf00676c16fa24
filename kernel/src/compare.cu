// SPDX-License-Identifier: Apache-2.0
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime_api.h>

#include "checks.h"
#include "compare_rule.h"
#include "early.cuh"

namespace kdtree {
namespace {

constexpr int kTokenThreads = 256;
constexpr int kTotalThreads = 256;
constexpr unsigned kAll = 0xffffffffu;

__device__ TokenDelta merge(const TokenDelta& a, const TokenDelta& b) {
  const bool second = b.max_ulp > a.max_ulp;
  return {a.sum_ulp + b.sum_ulp, a.counted + b.counted, fmaxf(a.max_abs, b.max_abs),
          second ? b.max_ulp : a.max_ulp, second ? b.worst_head : a.worst_head};
}

// A block a token, a warp a head at a time.
template <typename T>
__global__ void __launch_bounds__(kTokenThreads)
    token_kernel(const __grid_constant__ kdtree_compare_params p, TokenDelta* deltas) {
  ptx::launch_dependents();
  ptx::wait_for_previous();
  if (p.enable != nullptr && *p.enable == 0) return;
  __shared__ TokenDelta shared[kTokenThreads / 32];
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  const T* ours = static_cast<const T*>(p.ours) + int64_t{blockIdx.x} * p.ours_token_stride;
  const T* engines =
      static_cast<const T*>(p.engines) + int64_t{blockIdx.x} * p.engines_token_stride;
  TokenDelta token{};
  for (int head = warp; head < p.heads; head += kTokenThreads / 32) {
    float magnitude = 0, largest = 0, sum = 0;
    int counted = 0;
    for (int d = lane; d < KDTREE_V_DIM; d += 32) {
      const float theirs = static_cast<float>(engines[head * KDTREE_V_DIM + d]);
      const float mine = static_cast<float>(ours[head * KDTREE_V_DIM + d]);
      if (!isfinite(theirs)) continue;
      const float difference = isfinite(mine) ? fabsf(mine - theirs) : INFINITY;
      magnitude = fmaxf(magnitude, fabsf(theirs));
      largest = fmaxf(largest, difference);
      sum += difference;
      ++counted;
    }
    for (int step = 16; step > 0; step /= 2) {
      magnitude = fmaxf(magnitude, __shfl_xor_sync(kAll, magnitude, step));
      largest = fmaxf(largest, __shfl_xor_sync(kAll, largest, step));
      sum += __shfl_xor_sync(kAll, sum, step);
      counted += __shfl_xor_sync(kAll, counted, step);
    }
    const float unit = ulp_at(magnitude, p.dtype);
    token = merge(token, {double{sum / unit}, counted, largest, largest / unit, head});
  }
  if (lane == 0) shared[warp] = token;
  __syncthreads();
  if (threadIdx.x != 0) return;
  for (int w = 1; w < kTokenThreads / 32; ++w) token = merge(token, shared[w]);
  deltas[blockIdx.x] = token;
}

// One block: all tokens into the accumulator.
__global__ void __launch_bounds__(kTotalThreads)
    total_kernel(const __grid_constant__ kdtree_compare_params p, const TokenDelta* deltas) {
  ptx::wait_for_previous();
  if (p.enable != nullptr && *p.enable == 0) return;
  __shared__ TokenDelta shared[kTotalThreads];
  __shared__ double means[kTotalThreads];
  __shared__ int worst[kTotalThreads];
  __shared__ int longest[kTotalThreads];
  const int me = static_cast<int>(threadIdx.x);
  TokenDelta mine{};
  double mean = 0;
  int worst_token = 0, longest_prefix = 0;
  for (int token = me; token < p.tokens; token += kTotalThreads) {
    if (deltas[token].max_ulp > mine.max_ulp) worst_token = token;
    mine = merge(mine, deltas[token]);
  }
  for (int b = me; b < p.batch; b += kTotalThreads) {
    const int prefix = p.kv_indptr[b + 1] - p.kv_indptr[b];
    longest_prefix = prefix > longest_prefix ? prefix : longest_prefix;
  }
  const int each = p.tokens / p.batch, lane = me % 32;
  for (int b = me / 32; b < p.batch; b += kTotalThreads / 32) {
    double sum = 0;
    int64_t counted = 0;
    for (int token = lane; token < each; token += 32) {
      sum += deltas[b * each + token].sum_ulp;
      counted += deltas[b * each + token].counted;
    }
    for (int step = 16; step > 0; step /= 2) {
      sum += __shfl_xor_sync(kAll, sum, step);
      counted += __shfl_xor_sync(kAll, counted, step);
    }
    mean = fmax(mean, mean_of(sum, counted));
  }
  shared[me] = mine;
  means[me] = mean;
  worst[me] = worst_token;
  longest[me] = longest_prefix;
  __syncthreads();
  for (int step = kTotalThreads / 2; step > 0; step /= 2) {
    if (me < step) {
      if (shared[me + step].max_ulp > shared[me].max_ulp) worst[me] = worst[me + step];
      shared[me] = merge(shared[me], shared[me + step]);
      means[me] = fmax(means[me], means[me + step]);
      longest[me] = longest[me] > longest[me + step] ? longest[me] : longest[me + step];
    }
    __syncthreads();
  }
  if (me != 0) return;
  volatile kdtree_compare_accum* accum = p.accum;
  accum->sequence = accum->sequence + 1;
  __threadfence_system();
  accumulate(accum, p, {shared[0], means[0], worst[0], longest[0]});
  __threadfence_system();
  accum->sequence = accum->sequence + 1;
}

}  // namespace
}  // namespace kdtree

int64_t kdtree_compare_workspace_bytes(int32_t tokens) {
  return tokens < 1 ? int64_t{KDTREE_BAD_SHAPE}
                    : int64_t{tokens} * static_cast<int64_t>(sizeof(kdtree::TokenDelta));
}

int kdtree_compare_cuda(const kdtree_compare_params* params, void* stream) {
  using namespace kdtree;
  if (params == nullptr) return KDTREE_BAD_POINTER;
  if (const int status = check(*params, Device::cuda); status != KDTREE_OK) return status;
  if (params->workspace == nullptr || reinterpret_cast<uintptr_t>(params->workspace) % 16 != 0 ||
      params->workspace_bytes < kdtree_compare_workspace_bytes(params->tokens))
    return KDTREE_BAD_WORKSPACE;
  const auto on = static_cast<cudaStream_t>(stream);
  auto* deltas = static_cast<TokenDelta*>(params->workspace);
  const Launch each_token{static_cast<unsigned>(params->tokens), kTokenThreads, on};
  const cudaError_t error =
      params->dtype == KDTREE_BF16
          ? launch_early(token_kernel<__nv_bfloat16>, each_token, *params, deltas)
          : launch_early(token_kernel<__half>, each_token, *params, deltas);
  if (error != cudaSuccess) return error;
  return launch_early(total_kernel, Launch{1, kTotalThreads, on}, *params, deltas);
}
