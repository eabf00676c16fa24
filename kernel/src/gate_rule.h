// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <kdtree/gate.h>
#include <kdtree/verify_attn.h>

#ifdef __CUDACC__
#define KDTREE_HOST_DEVICE __host__ __device__
#else
#define KDTREE_HOST_DEVICE
#endif

namespace kdtree {

struct GateFlags {
  int32_t kernel, compare, engine, mode;
};

// The table of gate.h.
KDTREE_HOST_DEVICE inline GateFlags gate_flags(uint32_t mode) {
  if (mode == 1) return {KDTREE_ENABLE_SCRATCH, 1, 1, 1};
  if (mode == 2) return {KDTREE_ENABLE_OUT, 0, 0, 2};
  return {KDTREE_ENABLE_NOTHING, 0, 1, 0};
}

}  // namespace kdtree
