// SPDX-License-Identifier: Apache-2.0
// Stands in for the CUDA sources where there is no nvcc.
#include <kdtree/compare.h>
#include <kdtree/gate.h>
#include <kdtree/verify_attn.h>

int64_t kdtree_verify_attn_workspace_bytes(int32_t, int32_t, int32_t, int32_t) {
  return KDTREE_NO_CUDA;
}
int kdtree_verify_attn_cuda(const kdtree_verify_attn_params*, void*) { return KDTREE_NO_CUDA; }
int kdtree_gate_cuda(const kdtree_gate_params*, void*) { return KDTREE_NO_CUDA; }
int kdtree_compare_cuda(const kdtree_compare_params*, void*) { return KDTREE_NO_CUDA; }
int64_t kdtree_compare_workspace_bytes(int32_t) { return KDTREE_NO_CUDA; }
