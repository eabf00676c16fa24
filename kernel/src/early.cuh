// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cuda_runtime_api.h>

#include "ptx.cuh"

// Programmatic dependent launch: a kernel is placed while the kernel before it ends, which hides
// part of what a launch costs in a graph. Every thread of such a kernel calls
// ptx::wait_for_previous() before it touches anything of other kernels, and also where it has
// nothing to do: the kernel behind it waits for it alone.
namespace kdtree {

struct Launch {
  unsigned blocks = 0;
  unsigned threads = 0;  // of a block
  cudaStream_t stream = nullptr;
  size_t shared_bytes = 0;  // dynamic, of a block
};

template <typename... Parameters, typename... Arguments>
cudaError_t launch_early(void (*kernel)(Parameters...), const Launch& launch,
                         const Arguments&... arguments) {
  cudaLaunchAttribute early{};
  early.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  early.val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(launch.blocks);
  config.blockDim = dim3(launch.threads);
  config.dynamicSmemBytes = launch.shared_bytes;
  config.stream = launch.stream;
  config.attrs = &early;
  config.numAttrs = 1;
  return cudaLaunchKernelEx(&config, kernel, static_cast<Parameters>(arguments)...);
}

}  // namespace kdtree
