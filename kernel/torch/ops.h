// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "checks.h"

// torch.ops.kdtree.*, on torch's stable ABI (torch 2.10 or newer): argument checks and dispatch to
// the C ABI. Each throws std::runtime_error with one line: op, argument, rule, value got.
namespace kdtree::op {

int64_t verify_attn_workspace_bytes(int64_t batch, int64_t draft_tokens, int64_t heads,
                                    const Tensor& like, int64_t nsplit);
void verify_attn(const Tensor& q, const MaybeTensor& k_draft, const Tensor& out,
                 const Tensor& kv_pool, const Tensor& qo_indptr, const Tensor& kv_indptr,
                 const Tensor& kv_indices, const MaybeTensor& custom_mask,
                 const MaybeTensor& mask_indptr, const MaybeTensor& out_cache_loc,
                 const Tensor& workspace, int64_t draft_tokens, double sm_scale,
                 const MaybeTensor& enable, const MaybeTensor& out_scratch, int64_t nsplit,
                 double k_scale, double v_scale);

void gate(const Tensor& word, const Tensor& qo_indptr, const Tensor& kv_indptr,
          const Tensor& gated_qo_indptr, const Tensor& gated_kv_indptr, const Tensor& flags);
void tick(const Tensor& word, const Tensor& like);
int64_t compare_workspace_bytes(int64_t tokens, const Tensor& like);
void compare(const Tensor& ours, const Tensor& engines, const Tensor& kv_indptr, int64_t layer,
             const Tensor& accum, const Tensor& workspace, const MaybeTensor& enable,
             double max_ulp, double mean_ulp);

void slots(const Tensor& kv_indptr, const Tensor& kv_indices, const Tensor& counts,
           const MaybeTensor& enable, int64_t max_slots);
int64_t moe_table_bytes(int64_t layers, int64_t experts, int64_t ranks, const Tensor& like);
void moe_begin(const Tensor& table, int64_t layers, int64_t experts, int64_t ranks, int64_t rows);
void moe_count(const Tensor& table, int64_t layers, int64_t experts, int64_t ranks, int64_t layer,
               const Tensor& ids);
void moe_end(const Tensor& table, int64_t layers, int64_t experts, int64_t ranks,
             const Tensor& copy, int64_t first, int64_t last);

void* current_stream(const Tensor& tensor);

// Runs one of the C ABI's pairs where `like` lives: device guard, current stream, status check.
template <typename OnCpu, typename OnCuda>
void launch(const Checker& check, const Tensor& like, OnCpu on_cpu, OnCuda on_cuda) {
  if (check.on_cpu()) return check.status(on_cpu());
  const torch::stable::accelerator::DeviceGuard guard(like.get_device_index());
  check.status(on_cuda(current_stream(like)));
}
template <typename Params>
void launch(const Checker& check, const Tensor& like, const Params& params,
            int (*on_cpu)(const Params*), int (*on_cuda)(const Params*, void*)) {
  launch(
      check, like, [&] { return on_cpu(&params); },
      [&](void* stream) { return on_cuda(&params, stream); });
}

}  // namespace kdtree::op
