// SPDX-License-Identifier: Apache-2.0
#include <cuda_runtime_api.h>

#include "checks.h"
#include "early.cuh"
#include "moe_table.h"

namespace kdtree {
namespace {

constexpr int kCountThreads = 256;
constexpr int kCopyThreads = 1024;

__device__ void add(uint64_t* counter, uint64_t amount) {
  asm volatile("red.global.add.u64 [%0], %1;" ::"l"(counter), "l"(amount) : "memory");
}

// kdtree_moe_count_params and what is worked out of it once, on the host.
struct Count {
  kdtree_moe_count_params params;
  int32_t experts_a_rank;  // 1 without ranks
};

// The expert of assignment i, row by row; -1 if it is to be left out.
__device__ int32_t expert_at(const kdtree_moe_count_params& p, int32_t i) {
  const int32_t row = i / p.columns;
  const int64_t at = row * p.ids_stride + (i - row * p.columns);
  const int64_t expert = p.ids_bits == 64 ? static_cast<const int64_t*>(p.ids)[at]
                                          : int64_t{static_cast<const int32_t*>(p.ids)[at]};
  return expert >= 0 && expert < p.table.experts ? static_cast<int32_t>(expert) : -1;
}

__global__ void begin_kernel(kdtree_moe_head* head, int32_t rows) {
  head->rows = rows;
  if (rows <= 0) return;
  head->steps += 1;
  head->tokens += static_cast<uint64_t>(rows);
}

// One block: counts in shared memory, then one addition for each expert that was chosen. Each
// thread's first assignment is read together with the number of rows, not after it.
__global__ void __launch_bounds__(kCountThreads) count_kernel(const __grid_constant__ Count count) {
  const kdtree_moe_count_params& p = count.params;
  __shared__ uint32_t counts[KDTREE_MOE_MAX_EXPERTS];
  __shared__ uint32_t busy[KDTREE_MOE_MAX_RANKS];
  __shared__ uint32_t unique;
  const int me = static_cast<int>(threadIdx.x);
  for (int e = me; e < p.table.experts; e += kCountThreads) counts[e] = 0;
  for (int r = me; r < p.table.ranks; r += kCountThreads) busy[r] = 0;
  if (me == 0) unique = 0;
  __syncthreads();
  ptx::wait_for_previous();
  int32_t expert = me < p.tokens * p.columns ? expert_at(p, me) : -1;
  const int32_t assignments = min(p.table.head->rows, p.tokens) * p.columns;
  if (assignments <= 0) return;
  uint32_t first_uses = 0;
  for (int32_t i = me; i < assignments; i += kCountThreads) {
    if (i != me) expert = expert_at(p, i);
    if (expert < 0) continue;
    first_uses += atomicAdd(&counts[expert], 1u) == 0 ? 1 : 0;
    if (p.table.ranks > 0) busy[expert / count.experts_a_rank] = 1;
  }
  if (first_uses > 0) atomicAdd(&unique, first_uses);
  __syncthreads();
  const MoeView table(p.table, p.table.head);
  for (int e = me; e < p.table.experts; e += kCountThreads)
    if (counts[e] > 0) add(table.tokens(p.layer) + e, counts[e]);
  for (int r = me; r < p.table.ranks; r += kCountThreads)
    if (busy[r] == 0) add(table.idle(p.layer) + r, 1);
  if (me == 0) {
    add(table.unique(p.layer), unique);
    add(table.steps(p.layer), 1);
  }
}

__device__ void copy_words(uint64_t* to, const uint64_t* from, int64_t words) {
  for (int64_t i = threadIdx.x; i < words; i += kCopyThreads) to[i] = from[i];
}

__global__ void __launch_bounds__(kCopyThreads)
    end_kernel(kdtree_moe_table table, kdtree_moe_head* copy, int32_t first, int32_t last) {
  const MoeView from(table, table.head), to(table, copy);
  volatile kdtree_moe_head* shown = copy;
  if (threadIdx.x == 0) {
    table.head->rows = 0;
    table.head->sequence += 2;
    shown->sequence = table.head->sequence - 1;
    __threadfence_system();
    shown->steps = table.head->steps;
    shown->tokens = table.head->tokens;
  }
  __syncthreads();
  const int64_t layers = last - first + 1;
  copy_words(to.tokens(first), from.tokens(first), layers * table.experts);
  copy_words(to.unique(first), from.unique(first), layers);
  copy_words(to.steps(first), from.steps(first), layers);
  copy_words(to.idle(first), from.idle(first), layers * table.ranks);
  __threadfence_system();
  __syncthreads();
  if (threadIdx.x == 0) shown->sequence = table.head->sequence;
}

}  // namespace
}  // namespace kdtree

int kdtree_moe_begin_cuda(const kdtree_moe_table* table, int32_t rows, void* stream) {
  using namespace kdtree;
  if (table == nullptr) return KDTREE_BAD_POINTER;
  if (const int status = check(*table); status != KDTREE_OK) return status;
  begin_kernel<<<1, 1, 0, static_cast<cudaStream_t>(stream)>>>(table->head, rows);
  return cudaGetLastError();
}

int kdtree_moe_count_cuda(const kdtree_moe_count_params* params, void* stream) {
  using namespace kdtree;
  if (params == nullptr) return KDTREE_BAD_POINTER;
  if (const int status = check(*params); status != KDTREE_OK) return status;
  const kdtree_moe_table& table = params->table;
  const Count count{*params, table.ranks > 0 ? table.experts / table.ranks : 1};
  const Launch launch{1, kCountThreads, static_cast<cudaStream_t>(stream)};
  return launch_early(count_kernel, launch, count);
}

int kdtree_moe_end_cuda(const kdtree_moe_table* table, kdtree_moe_head* copy, int32_t first,
                        int32_t last, void* stream) {
  using namespace kdtree;
  if (table == nullptr) return KDTREE_BAD_POINTER;
  if (const int status = check(*table, copy, first, last); status != KDTREE_OK) return status;
  end_kernel<<<1, kCopyThreads, 0, static_cast<cudaStream_t>(stream)>>>(*table, copy, first, last);
  return cudaGetLastError();
}
