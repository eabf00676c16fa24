// SPDX-License-Identifier: Apache-2.0
#include <kdtree/status.h>

#ifdef KDTREE_WITH_CUDA
#include <cuda_runtime_api.h>
#endif

const char* kdtree_status_string(int status) {
  switch (status) {
    case KDTREE_OK:
      return "done";
    case KDTREE_BAD_STRUCT:
      return "the params struct is of another version of this library";
    case KDTREE_BAD_SHAPE:
      return "batch, draft tokens, heads, slots, splits or threads are out of range";
    case KDTREE_BAD_DTYPE:
      return "a data or index type is not supported on this device";
    case KDTREE_BAD_POINTER:
      return "a required pointer is null or misaligned";
    case KDTREE_BAD_STRIDE:
      return "a row stride is not a multiple of 16 bytes";
    case KDTREE_BAD_WORKSPACE:
      return "the workspace is null, misaligned or too small";
    case KDTREE_NO_CUDA:
      return "this library was built without the CUDA kernels";
    case KDTREE_BAD_DEVICE:
      return "the GPU is older than sm_80 or has under 99 KiB of shared memory a block";
    case KDTREE_BAD_SCALE:
      return "k_scale or v_scale is not a positive finite number";
    default:
      break;
  }
#ifdef KDTREE_WITH_CUDA
  if (status > 0) return cudaGetErrorString(static_cast<cudaError_t>(status));
#endif
  return "unknown status";
}

int kdtree_has_cuda(void) {
#ifdef KDTREE_WITH_CUDA
  return 1;
#else
  return 0;
#endif
}
