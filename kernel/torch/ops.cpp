// SPDX-License-Identifier: Apache-2.0
#include "ops.h"

#include <kdtree/compare.h>
#include <kdtree/gate.h>
#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/ops.h>

#include <algorithm>

namespace kdtree::op {
namespace {

void check_word(const Checker& check, const Tensor& word) {
  check.type(word, "word", {ScalarType::Byte, ScalarType::Int, ScalarType::Long});
  check.require(word.is_contiguous() && word.numel() * static_cast<int64_t>(word.element_size()) >=
                                            static_cast<int64_t>(sizeof(kdtree_gate_word)),
                "word", "must be contiguous and have at least 64 bytes", shape_of(word));
}

}  // namespace

void* current_stream(const Tensor& tensor) {
  void* stream = nullptr;
#ifdef KDTREE_WITH_CUDA
  TORCH_ERROR_CODE_CHECK(aoti_torch_get_current_cuda_stream(tensor.get_device_index(), &stream));
#else
  static_cast<void>(tensor);
#endif
  return stream;
}

void gate(const Tensor& word, const Tensor& qo_indptr, const Tensor& kv_indptr,
          const Tensor& gated_qo_indptr, const Tensor& gated_kv_indptr, const Tensor& flags) {
  const Checker check("gate", qo_indptr);
  kdtree_gate_params p{};
  p.struct_bytes = sizeof p;
  p.qo_indptr_bits = check.index(qo_indptr, "qo_indptr", 2);
  check.one_dim(kv_indptr, "kv_indptr", 2);
  check.type(kv_indptr, "kv_indptr", {ScalarType::Int});
  const int64_t batch = std::min(qo_indptr.numel(), kv_indptr.numel()) - 1;
  check.one_dim(gated_qo_indptr, "gated_qo_indptr", batch + 1);
  check.type(gated_qo_indptr, "gated_qo_indptr", {qo_indptr.scalar_type()});
  check.one_dim(gated_kv_indptr, "gated_kv_indptr", batch + 1);
  check.type(gated_kv_indptr, "gated_kv_indptr", {ScalarType::Int});
  check.one_dim(flags, "flags", KDTREE_GATE_FLAGS);
  check.type(flags, "flags", {ScalarType::Int});
  check_word(check, word);
  p.batch = static_cast<int32_t>(batch);
  p.word = pointer<kdtree_gate_word>(word);
  p.qo_indptr = qo_indptr.data_ptr();
  p.kv_indptr = pointer<const int32_t>(kv_indptr);
  p.gated_qo_indptr = gated_qo_indptr.data_ptr();
  p.gated_kv_indptr = pointer<int32_t>(gated_kv_indptr);
  p.flags = pointer<int32_t>(flags);
  launch(check, qo_indptr, p, kdtree_gate_cpu, kdtree_gate_cuda);
}

void tick(const Tensor& word, const Tensor& like) {
  const Checker check("tick", like);
  check_word(check, word);
  auto* at = pointer<kdtree_gate_word>(word);
  launch(
      check, like, [&] { return kdtree_tick_cpu(at); },
      [&](void* stream) { return kdtree_tick_cuda(at, stream); });
}

int64_t compare_workspace_bytes(int64_t tokens, const Tensor& like) {
  const Checker check("compare_workspace_bytes", like);
  check.require(tokens >= 1 && tokens <= INT32_MAX, "tokens", "must be in 1..2^31-1", tokens);
  if (check.on_cpu()) return 0;
  const int64_t bytes = kdtree_compare_workspace_bytes(static_cast<int32_t>(tokens));
  if (bytes < 0) check.status(bytes);
  return bytes;
}

void compare(const Tensor& ours, const Tensor& engines, const Tensor& kv_indptr, int64_t layer,
             const Tensor& accum, const Tensor& workspace, const MaybeTensor& enable,
             double max_ulp, double mean_ulp) {
  const Checker check("compare", ours);
  kdtree_compare_params p{};
  p.struct_bytes = sizeof p;
  p.dtype = check.data_type(ours, "ours");
  const int64_t width = ours.dim() == 3   ? ours.size(1) * ours.size(2)
                        : ours.dim() == 2 ? ours.size(1)
                                          : 0;
  const int64_t heads = width / KDTREE_V_DIM;
  check.require(heads >= 1 && ours.size(0) >= 1, "ours", "must be [tokens, heads, 512]",
                shape_of(ours));
  p.ours_token_stride = check.output(ours, "ours", ours, ours.size(0), heads);
  p.engines_token_stride = check.output(engines, "engines", ours, ours.size(0), heads);
  check.one_dim(kv_indptr, "kv_indptr", 2);
  check.type(kv_indptr, "kv_indptr", {ScalarType::Int});
  const int64_t batch = kv_indptr.numel() - 1;
  check.require(ours.size(0) % batch == 0, "ours",
                "must have the same number of tokens for each request", ours.size(0));
  check.type(accum, "accum", {ScalarType::Byte});
  check.require(
      accum.is_contiguous() && accum.numel() >= static_cast<int64_t>(sizeof(kdtree_compare_accum)),
      "accum", "must be contiguous and have at least 4232 bytes", shape_of(accum));
  if (enable.has_value()) {
    check.one_dim(*enable, "enable", 1);
    check.type(*enable, "enable", {ScalarType::Int});
  }
  if (!check.on_cpu())
    check.workspace(workspace, kdtree_compare_workspace_bytes(static_cast<int32_t>(ours.size(0))));
  p.tokens = static_cast<int32_t>(ours.size(0));
  p.heads = static_cast<int32_t>(heads);
  p.batch = static_cast<int32_t>(batch);
  p.layer = static_cast<int32_t>(layer);
  p.max_ulp = max_ulp;
  p.mean_ulp = mean_ulp;
  p.ours = ours.data_ptr();
  p.engines = engines.data_ptr();
  p.kv_indptr = pointer<const int32_t>(kv_indptr);
  p.enable = pointer<const int32_t>(enable);
  p.accum = pointer<kdtree_compare_accum>(accum);
  p.workspace = workspace.data_ptr();
  p.workspace_bytes = workspace.numel();
  launch(check, ours, p, kdtree_compare_cpu, kdtree_compare_cuda);
}

}  // namespace kdtree::op

STABLE_TORCH_LIBRARY(kdtree, m) {
  m.def(
      "verify_attn(Tensor q, Tensor? k_draft, Tensor(a!) out, Tensor kv_pool, Tensor qo_indptr, "
      "Tensor kv_indptr, "
      "Tensor kv_indices, Tensor? custom_mask, Tensor? mask_indptr, Tensor? out_cache_loc, "
      "Tensor(b!) workspace, "
      "int draft_tokens, float sm_scale, Tensor? enable=None, Tensor(c!)? out_scratch=None, int "
      "nsplit=0, float k_scale=1.0, float v_scale=1.0) -> ()");
  m.def(
      "verify_attn_workspace_bytes(int batch, int draft_tokens, int heads, Tensor like, int "
      "nsplit=0) -> int");
  m.def(
      "gate(Tensor(a!) word, Tensor qo_indptr, Tensor kv_indptr, Tensor(b!) gated_qo_indptr, "
      "Tensor(c!) gated_kv_indptr, Tensor(d!) flags) -> ()");
  m.def("tick(Tensor(a!) word, Tensor like) -> ()");
  m.def("compare_workspace_bytes(int tokens, Tensor like) -> int");
  m.def(
      "compare(Tensor ours, Tensor engines, Tensor kv_indptr, int layer, Tensor(a!) accum, "
      "Tensor(b!) workspace, "
      "Tensor? enable=None, float max_ulp=4.0, float mean_ulp=0.5) -> ()");
  m.def(
      "slots(Tensor kv_indptr, Tensor kv_indices, Tensor(a!) counts, Tensor? enable=None, int "
      "max_slots=65536) -> ()");
  m.def("moe_table_bytes(int layers, int experts, int ranks, Tensor like) -> int");
  m.def("moe_begin(Tensor(a!) table, int layers, int experts, int ranks, int rows) -> ()");
  m.def(
      "moe_count(Tensor(a!) table, int layers, int experts, int ranks, int layer, Tensor ids) "
      "-> ()");
  m.def(
      "moe_end(Tensor(a!) table, int layers, int experts, int ranks, Tensor(b!) copy, int first, "
      "int last) -> ()");
}

#define KDTREE_IMPLS(m)                                                                         \
  (m).impl("verify_attn", TORCH_BOX(&kdtree::op::verify_attn));                                 \
  (m).impl("verify_attn_workspace_bytes", TORCH_BOX(&kdtree::op::verify_attn_workspace_bytes)); \
  (m).impl("gate", TORCH_BOX(&kdtree::op::gate));                                               \
  (m).impl("compare_workspace_bytes", TORCH_BOX(&kdtree::op::compare_workspace_bytes));         \
  (m).impl("compare", TORCH_BOX(&kdtree::op::compare));                                         \
  (m).impl("tick", TORCH_BOX(&kdtree::op::tick));                                               \
  (m).impl("slots", TORCH_BOX(&kdtree::op::slots));                                             \
  (m).impl("moe_table_bytes", TORCH_BOX(&kdtree::op::moe_table_bytes));                         \
  (m).impl("moe_begin", TORCH_BOX(&kdtree::op::moe_begin));                                     \
  (m).impl("moe_count", TORCH_BOX(&kdtree::op::moe_count));                                     \
  (m).impl("moe_end", TORCH_BOX(&kdtree::op::moe_end))

STABLE_TORCH_LIBRARY_IMPL(kdtree, CPU, m) { KDTREE_IMPLS(m); }
STABLE_TORCH_LIBRARY_IMPL(kdtree, CUDA, m) { KDTREE_IMPLS(m); }
