// SPDX-License-Identifier: Apache-2.0
#include <cuda_runtime_api.h>

#include "checks.h"
#include "early.cuh"
#include "moe_count.cuh"

namespace kdtree {
namespace {

template <typename Id>
cudaError_t launch_count(const MoeCount& count, cudaStream_t stream) {
  const Launch launch{count.blocks(), kCountThreads, stream};
  return count.dense() ? launch_early(count_kernel<Id, true>, launch, count)
                       : launch_early(count_kernel<Id, false>, launch, count);
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
  const MoeCount count(*params);
  if (count.assignments == 0) return KDTREE_OK;
  const auto on = static_cast<cudaStream_t>(stream);
  return params->ids_bits == 64 ? launch_count<int64_t>(count, on)
                                : launch_count<int32_t>(count, on);
}

int kdtree_moe_end_cuda(const kdtree_moe_table* table, kdtree_moe_head* copy, int32_t first,
                        int32_t last, void* stream) {
  using namespace kdtree;
  if (table == nullptr) return KDTREE_BAD_POINTER;
  if (const int status = check(*table, copy, first, last); status != KDTREE_OK) return status;
  const auto on = static_cast<cudaStream_t>(stream);
  open_kernel<<<1, 1, 0, on>>>(table->head, copy);
  if (const cudaError_t error = cudaGetLastError(); error != cudaSuccess) return error;
  const Launch launch{static_cast<unsigned>(last - first + 1), kEndThreads, on};
  return launch_early(end_kernel, launch, *table, copy, first, last);
}
