// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cuda_runtime_api.h>

#include "ptx.cuh"

// Programmatic dependent launch for small kernels: placed while the kernel before them ends, which
// hides part of what a launch costs in a graph. Every thread of such a kernel calls
// ptx::wait_for_previous() before it touches anything of other kernels, and also where it has
// nothing to do: the kernel behind it waits for it alone.
namespace kdtree {

template <typename... Parameters, typename... Arguments>
cudaError_t launch_after(void (*kernel)(Parameters...), unsigned blocks, unsigned threads,
                         cudaStream_t stream, const Arguments&... arguments) {
  cudaLaunchAttribute early{};
  early.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  early.val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(blocks);
  config.blockDim = dim3(threads);
  config.stream = stream;
  config.attrs = &early;
  config.numAttrs = 1;
  return cudaLaunchKernelEx(&config, kernel, static_cast<Parameters>(arguments)...);
}

}  // namespace kdtree
