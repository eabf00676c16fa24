// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "compare_rule.h"
#include "ptx.cuh"

namespace kdtree {

constexpr int kCompareThreads = 256;

// compare.h's workspace. ticket: 0 between calls.
struct CompareHead {
  unsigned ticket;
  unsigned reserved[3];
};

// The same, with a TokenDelta for each token behind it.
struct CompareWork {
  CompareHead* head;
  TokenDelta* deltas;
};

__device__ inline TokenDelta merge(const TokenDelta& a, const TokenDelta& b) {
  const bool second = b.max_ulp > a.max_ulp;
  return {a.sum_ulp + b.sum_ulp, a.counted + b.counted, fmaxf(a.max_abs, b.max_abs),
          second ? b.max_ulp : a.max_ulp, second ? b.worst_head : a.worst_head};
}

// The rows of this block's token, a warp a head at a time; valid in thread 0.
template <typename T>
__device__ inline TokenDelta token_delta(const kdtree_compare_params& p) {
  __shared__ TokenDelta shared[kCompareThreads / 32];
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  const T* ours = static_cast<const T*>(p.ours) + int64_t{blockIdx.x} * p.ours_token_stride;
  const T* engines =
      static_cast<const T*>(p.engines) + int64_t{blockIdx.x} * p.engines_token_stride;
  TokenDelta token{};
  for (int head = warp; head < p.heads; head += kCompareThreads / 32) {
    float magnitude = 0, largest = 0, sum = 0;
    int counted = 0;
    for (int d = lane; d < KDTREE_V_DIM; d += 32) {
      const float theirs = static_cast<float>(engines[head * KDTREE_V_DIM + d]);
      const float mine = static_cast<float>(ours[head * KDTREE_V_DIM + d]);
      if (!std::isfinite(theirs)) continue;
      const float difference = std::isfinite(mine) ? fabsf(mine - theirs) : INFINITY;
      magnitude = fmaxf(magnitude, fabsf(theirs));
      largest = fmaxf(largest, difference);
      sum += difference;
      ++counted;
    }
    for (int step = 16; step > 0; step /= 2) {
      magnitude = fmaxf(magnitude, __shfl_xor_sync(0xffffffffu, magnitude, step));
      largest = fmaxf(largest, __shfl_xor_sync(0xffffffffu, largest, step));
      sum += __shfl_xor_sync(0xffffffffu, sum, step);
      counted += __shfl_xor_sync(0xffffffffu, counted, step);
    }
    const float unit = ulp_at(magnitude, p.dtype);
    token = merge(token, {double{sum / unit}, counted, largest, largest / unit, head});
  }
  if (lane == 0) shared[warp] = token;
  __syncthreads();
  if (threadIdx.x == 0)
    for (int w = 1; w < kCompareThreads / 32; ++w) token = merge(token, shared[w]);
  return token;
}

// All tokens into the accumulator; by one block, once every delta is there.
__device__ inline void add_up(const kdtree_compare_params& p, const TokenDelta* deltas) {
  __shared__ TokenDelta shared[kCompareThreads];
  __shared__ double means[kCompareThreads];
  __shared__ int worst[kCompareThreads];
  __shared__ int longest[kCompareThreads];
  const int me = static_cast<int>(threadIdx.x);
  TokenDelta mine{};
  double mean = 0;
  int worst_token = 0, longest_prefix = 0;
  for (int token = me; token < p.tokens; token += kCompareThreads) {
    if (deltas[token].max_ulp > mine.max_ulp) worst_token = token;
    mine = merge(mine, deltas[token]);
  }
  for (int b = me; b < p.batch; b += kCompareThreads) {
    const int prefix = p.kv_indptr[b + 1] - p.kv_indptr[b];
    longest_prefix = prefix > longest_prefix ? prefix : longest_prefix;
  }
  const int each = p.tokens / p.batch, lane = me % 32;
  for (int b = me / 32; b < p.batch; b += kCompareThreads / 32) {
    double sum = 0;
    int64_t counted = 0;
    for (int token = lane; token < each; token += 32) {
      sum += deltas[b * each + token].sum_ulp;
      counted += deltas[b * each + token].counted;
    }
    for (int step = 16; step > 0; step /= 2) {
      sum += __shfl_xor_sync(0xffffffffu, sum, step);
      counted += __shfl_xor_sync(0xffffffffu, counted, step);
    }
    mean = fmax(mean, mean_of(sum, counted));
  }
  shared[me] = mine;
  means[me] = mean;
  worst[me] = worst_token;
  longest[me] = longest_prefix;
  __syncthreads();
  for (int step = kCompareThreads / 2; step > 0; step /= 2) {
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

// A block a token; the last one to be done adds up. `enable` is read before the kernel before this
// one has ended (compare.h says who may write it), so that an idle call waits for nothing else.
template <typename T>
__global__ void __launch_bounds__(kCompareThreads)
    compare_kernel(const __grid_constant__ kdtree_compare_params p, CompareWork work) {
  ptx::launch_dependents();
  const bool idle = p.enable != nullptr && *static_cast<const volatile int32_t*>(p.enable) == 0;
  ptx::wait_for_previous();
  if (idle) return;
  __shared__ bool last;
  const TokenDelta token = token_delta<T>(p);
  if (threadIdx.x == 0) {
    work.deltas[blockIdx.x] = token;
    __threadfence();
    const auto blocks = static_cast<unsigned>(p.tokens);
    last = atomicInc(&work.head->ticket, blocks - 1) == blocks - 1;
  }
  __syncthreads();
  if (!last) return;
  __threadfence();
  add_up(p, work.deltas);
}

}  // namespace kdtree
