// SPDX-License-Identifier: Apache-2.0
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "checks.h"
#include "verify_attn_launch.h"

namespace {

constexpr int kSharedBytesNeeded = 101376;

struct Gpu {
  int multiprocessors = 0;
  int shared_bytes = 0;
  int major = 0;
};

cudaError_t current_gpu(Gpu& gpu) {
  int device = 0;
  if (const cudaError_t error = cudaGetDevice(&device); error != cudaSuccess) return error;
  for (const auto& [value, attribute] :
       {std::pair{&gpu.multiprocessors, cudaDevAttrMultiProcessorCount},
        std::pair{&gpu.shared_bytes, cudaDevAttrMaxSharedMemoryPerBlockOptin},
        std::pair{&gpu.major, cudaDevAttrComputeCapabilityMajor}})
    if (const cudaError_t error = cudaDeviceGetAttribute(value, attribute, device);
        error != cudaSuccess)
      return error;
  return cudaSuccess;
}

int64_t bytes_needed(const kdtree::Shape& shape, int batch) {
  return kdtree::output_bytes(shape, batch) + kdtree::statistics_bytes(shape, batch);
}

}  // namespace

int64_t kdtree_verify_attn_workspace_bytes(int32_t batch, int32_t draft_tokens, int32_t heads,
                                           int32_t nsplit) {
  if (batch < 1 || batch > KDTREE_MAX_BATCH || draft_tokens < 1 ||
      draft_tokens > KDTREE_MAX_DRAFT_TOKENS || heads < 1 || heads > KDTREE_MAX_HEADS || nsplit < 0)
    return KDTREE_BAD_SHAPE;
  Gpu gpu;
  if (const cudaError_t error = current_gpu(gpu); error != cudaSuccess)
    return -1000 - int64_t{error};
  return bytes_needed(kdtree::make_shape(draft_tokens, heads, nsplit, gpu.multiprocessors), batch);
}

int kdtree_verify_attn_cuda(const kdtree_verify_attn_params* params, void* stream) {
  using namespace kdtree;
  if (params == nullptr) return KDTREE_BAD_POINTER;
  if (const int status = check(*params, Device::cuda); status != KDTREE_OK) return status;
  if (params->out == nullptr) return KDTREE_BAD_POINTER;
  Gpu gpu;
  if (const cudaError_t error = current_gpu(gpu); error != cudaSuccess) return error;
  if (gpu.major < 8 || gpu.shared_bytes < kSharedBytesNeeded) return KDTREE_BAD_DEVICE;
  const Shape shape =
      make_shape(params->draft_tokens, params->heads, params->nsplit, gpu.multiprocessors);
  if (params->workspace == nullptr || reinterpret_cast<uintptr_t>(params->workspace) % 256 != 0 ||
      params->workspace_bytes < bytes_needed(shape, params->batch))
    return KDTREE_BAD_WORKSPACE;
  const auto on = static_cast<cudaStream_t>(stream);
  const bool fp8 = params->kv_dtype == KDTREE_KV_E4M3;
  if (params->dtype == KDTREE_BF16)
    return fp8 ? launch_verify_attn<__nv_bfloat16, true>(*params, shape, on)
               : launch_verify_attn<__nv_bfloat16, false>(*params, shape, on);
  return fp8 ? launch_verify_attn<__half, true>(*params, shape, on)
             : launch_verify_attn<__half, false>(*params, shape, on);
}
