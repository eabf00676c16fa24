// SPDX-License-Identifier: Apache-2.0
#include <cuda_runtime_api.h>

#include "checks.h"
#include "gate_rule.h"

namespace kdtree {
namespace {

constexpr int kGateThreads = 256;

template <typename T>
__device__ void gate_copy(const void* from, void* to, int count, int factor) {
  for (int i = static_cast<int>(threadIdx.x); i < count; i += kGateThreads)
    static_cast<T*>(to)[i] = factor != 0 ? static_cast<const T*>(from)[i] : T{0};
}

// One thread reads the word, so that all of this step obeys the same mode.
__global__ void __launch_bounds__(kGateThreads)
    gate_kernel(const __grid_constant__ kdtree_gate_params p) {
  __shared__ GateFlags shared_flags;
  volatile kdtree_gate_word* word = p.word;
  if (threadIdx.x == 0) {
    const uint32_t mode = word->mode, look = word->look, looked = word->looked;
    shared_flags = gate_flags(mode);
    p.flags[0] = shared_flags.kernel;
    p.flags[1] = shared_flags.compare;
    p.flags[2] = shared_flags.engine;
    p.flags[3] = shared_flags.mode;
    p.flags[4] = look != looked ? 1 : 0;
    if (look != looked) word->looked = look;
  }
  if (threadIdx.x >= 5 && threadIdx.x < KDTREE_GATE_FLAGS) p.flags[threadIdx.x] = 0;
  __syncthreads();
  const GateFlags flags = shared_flags;
  const int count = p.batch + 1;
  if (p.qo_indptr_bits == 64)
    gate_copy<int64_t>(p.qo_indptr, p.gated_qo_indptr, count, flags.engine);
  else
    gate_copy<int32_t>(p.qo_indptr, p.gated_qo_indptr, count, flags.engine);
  gate_copy<int32_t>(p.kv_indptr, p.gated_kv_indptr, count, flags.engine);
  if (threadIdx.x == 0) word->steps[flags.mode] = word->steps[flags.mode] + 1;
}

__global__ void tick_kernel(volatile kdtree_gate_word* word) { word->ticks = word->ticks + 1; }

}  // namespace
}  // namespace kdtree

int kdtree_gate_cuda(const kdtree_gate_params* params, void* stream) {
  using namespace kdtree;
  if (params == nullptr) return KDTREE_BAD_POINTER;
  if (const int status = check(*params); status != KDTREE_OK) return status;
  gate_kernel<<<1, kGateThreads, 0, static_cast<cudaStream_t>(stream)>>>(*params);
  return cudaGetLastError();
}

int kdtree_tick_cuda(kdtree_gate_word* word, void* stream) {
  using namespace kdtree;
  if (const int status = check(word); status != KDTREE_OK) return status;
  tick_kernel<<<1, 1, 0, static_cast<cudaStream_t>(stream)>>>(word);
  return cudaGetLastError();
}
