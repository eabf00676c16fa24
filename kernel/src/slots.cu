// SPDX-License-Identifier: Apache-2.0
#include <cuda_runtime_api.h>

#include "checks.h"
#include "early.cuh"
#include "slots_rule.h"

namespace kdtree {
namespace {

constexpr int kSlotThreads = 1024;

template <typename T>
__global__ void __launch_bounds__(kSlotThreads)
    slots_kernel(const __grid_constant__ kdtree_slots_params p) {
  ptx::wait_for_previous();
  if (p.enable != nullptr && *p.enable == 0) return;
  __shared__ unsigned long long pairs, contiguous;
  if (threadIdx.x == 0) pairs = contiguous = 0;
  __syncthreads();
  const T* slots = static_cast<const T*>(p.kv_indices);
  unsigned long long looked = 0, followed = 0;
  for (int b = 0; b < p.batch; ++b) {
    const int64_t start = p.kv_indptr[b];
    const int64_t seen = slots_seen(p.kv_indptr[b + 1] - start, p);
#pragma unroll 4
    for (int64_t t = threadIdx.x; t + 1 < seen; t += kSlotThreads) {
      ++looked;
      followed += slots[start + t + 1] - slots[start + t] == 1 ? 1 : 0;
    }
  }
  if (looked > 0) {
    atomicAdd(&pairs, looked);
    atomicAdd(&contiguous, followed);
  }
  __syncthreads();
  if (threadIdx.x != 0) return;
  volatile kdtree_slot_counts* counts = p.counts;
  counts->sequence = counts->sequence + 1;
  __threadfence_system();
  counts->pairs = counts->pairs + pairs;
  counts->contiguous = counts->contiguous + contiguous;
  counts->looks = counts->looks + 1;
  __threadfence_system();
  counts->sequence = counts->sequence + 1;
}

}  // namespace
}  // namespace kdtree

int kdtree_slots_cuda(const kdtree_slots_params* params, void* stream) {
  using namespace kdtree;
  if (params == nullptr) return KDTREE_BAD_POINTER;
  if (const int status = check(*params); status != KDTREE_OK) return status;
  const Launch launch{1, kSlotThreads, static_cast<cudaStream_t>(stream)};
  return params->kv_indices_bits == 64 ? launch_early(slots_kernel<int64_t>, launch, *params)
                                       : launch_early(slots_kernel<int32_t>, launch, *params);
}
