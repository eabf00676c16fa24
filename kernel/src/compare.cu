// SPDX-License-Identifier: Apache-2.0
#include <cuda_runtime_api.h>

#include "checks.h"
#include "compare_kernel.cuh"
#include "early.cuh"

int64_t kdtree_compare_workspace_bytes(int32_t tokens) {
  using namespace kdtree;
  if (tokens < 1) return KDTREE_BAD_SHAPE;
  return static_cast<int64_t>(sizeof(CompareHead)) +
         int64_t{tokens} * static_cast<int64_t>(sizeof(TokenDelta));
}

int kdtree_compare_cuda(const kdtree_compare_params* params, void* stream) {
  using namespace kdtree;
  if (params == nullptr) return KDTREE_BAD_POINTER;
  if (const int status = check(*params, Device::cuda); status != KDTREE_OK) return status;
  if (params->workspace == nullptr || reinterpret_cast<uintptr_t>(params->workspace) % 16 != 0 ||
      params->workspace_bytes < kdtree_compare_workspace_bytes(params->tokens))
    return KDTREE_BAD_WORKSPACE;
  auto* head = static_cast<CompareHead*>(params->workspace);
  const CompareWork work{head, reinterpret_cast<TokenDelta*>(head + 1)};
  const Launch launch{static_cast<unsigned>(params->tokens), kCompareThreads,
                      static_cast<cudaStream_t>(stream)};
  return params->dtype == KDTREE_BF16
             ? launch_early(compare_kernel<__nv_bfloat16>, launch, *params, work)
             : launch_early(compare_kernel<__half>, launch, *params, work);
}
