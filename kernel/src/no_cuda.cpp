// SPDX-License-Identifier: Apache-2.0
// Stands in for the CUDA sources where there is no nvcc.
#include <kdtree/compare.h>
#include <kdtree/gate.h>
#include <kdtree/moe.h>
#include <kdtree/slots.h>
#include <kdtree/verify_attn.h>

int64_t kdtree_verify_attn_workspace_bytes(int32_t, int32_t, int32_t, int32_t) {
  return KDTREE_NO_CUDA;
}
int kdtree_verify_attn_cuda(const kdtree_verify_attn_params*, void*) { return KDTREE_NO_CUDA; }
int kdtree_gate_cuda(const kdtree_gate_params*, void*) { return KDTREE_NO_CUDA; }
int kdtree_tick_cuda(kdtree_gate_word*, void*) { return KDTREE_NO_CUDA; }
int kdtree_slots_cuda(const kdtree_slots_params*, void*) { return KDTREE_NO_CUDA; }
int kdtree_moe_begin_cuda(const kdtree_moe_table*, int32_t, void*) { return KDTREE_NO_CUDA; }
int kdtree_moe_count_cuda(const kdtree_moe_count_params*, void*) { return KDTREE_NO_CUDA; }
int kdtree_moe_end_cuda(const kdtree_moe_table*, kdtree_moe_head*, int32_t, int32_t, void*) {
  return KDTREE_NO_CUDA;
}
int kdtree_compare_cuda(const kdtree_compare_params*, void*) { return KDTREE_NO_CUDA; }
int64_t kdtree_compare_workspace_bytes(int32_t) { return KDTREE_NO_CUDA; }
