// SPDX-License-Identifier: Apache-2.0
#include <kdtree/moe.h>
#include <kdtree/slots.h>

#include "ops.h"

namespace kdtree::op {
namespace {

// `bytes` of contiguous memory as the host structs want them; on which device is the caller's.
void check_bytes(const Checker& check, const Tensor& tensor, const char* argument, int64_t bytes) {
  check.type(tensor, argument, {ScalarType::Byte});
  check.require(tensor.is_contiguous(), argument, "must be contiguous", shape_of(tensor));
  if (tensor.numel() < bytes)
    check.require(false, argument,
                  ("must have at least " + std::to_string(bytes) + " bytes").c_str(),
                  tensor.numel());
}

// The shape alone; a number that fits no int32 is refused by what is made of it.
kdtree_moe_table shape_of_table(int64_t layers, int64_t experts, int64_t ranks) {
  const auto narrow = [](int64_t value) {
    return value < 0 || value > INT32_MAX ? -1 : static_cast<int32_t>(value);
  };
  kdtree_moe_table table{};
  table.layers = narrow(layers);
  table.experts = narrow(experts);
  table.ranks = narrow(ranks);
  return table;
}

int64_t bytes_of(const Checker& check, const kdtree_moe_table& shape) {
  const int64_t bytes = kdtree_moe_table_bytes(shape.layers, shape.experts, shape.ranks);
  if (bytes <= 0)
    check.require(false, "layers, experts, ranks",
                  "must be in 1..256, 1..1024, 0..256, ranks a divisor of experts",
                  std::to_string(shape.layers) + ", " + std::to_string(shape.experts) + ", " +
                      std::to_string(shape.ranks));
  return bytes;
}

kdtree_moe_table table_of(const Checker& check, const Tensor& table, int64_t layers,
                          int64_t experts, int64_t ranks) {
  kdtree_moe_table made = shape_of_table(layers, experts, ranks);
  check_bytes(check, table, "table", bytes_of(check, made));
  made.head = pointer<kdtree_moe_head>(table);
  return made;
}

}  // namespace

void slots(const Tensor& kv_indptr, const Tensor& kv_indices, const Tensor& counts,
           const MaybeTensor& enable, int64_t max_slots) {
  const Checker check("slots", kv_indptr);
  kdtree_slots_params p{};
  p.struct_bytes = sizeof p;
  check.one_dim(kv_indptr, "kv_indptr", 2);
  check.type(kv_indptr, "kv_indptr", {ScalarType::Int});
  p.kv_indices_bits = check.index(kv_indices, "kv_indices", 0);
  check_bytes(check, counts, "counts", sizeof(kdtree_slot_counts));
  if (enable.has_value()) {
    check.one_dim(*enable, "enable", 1);
    check.type(*enable, "enable", {ScalarType::Int});
  }
  check.require(max_slots >= 1 && max_slots <= INT32_MAX, "max_slots", "must be in 1..2^31-1",
                max_slots);
  p.batch = static_cast<int32_t>(kv_indptr.numel() - 1);
  p.max_slots = static_cast<int32_t>(max_slots);
  p.kv_indptr = pointer<const int32_t>(kv_indptr);
  p.kv_indices = kv_indices.data_ptr();
  p.enable = pointer<const int32_t>(enable);
  p.counts = pointer<kdtree_slot_counts>(counts);
  launch(check, kv_indptr, p, kdtree_slots_cpu, kdtree_slots_cuda);
}

int64_t moe_table_bytes(int64_t layers, int64_t experts, int64_t ranks, const Tensor& like) {
  return bytes_of(Checker("moe_table_bytes", like), shape_of_table(layers, experts, ranks));
}

void moe_begin(const Tensor& table, int64_t layers, int64_t experts, int64_t ranks, int64_t rows) {
  const Checker check("moe_begin", table);
  const kdtree_moe_table t = table_of(check, table, layers, experts, ranks);
  check.require(rows >= 0 && rows <= INT32_MAX, "rows", "must be in 0..2^31-1", rows);
  const auto count = static_cast<int32_t>(rows);
  launch(
      check, table, [&] { return kdtree_moe_begin_cpu(&t, count); },
      [&](void* stream) { return kdtree_moe_begin_cuda(&t, count, stream); });
}

void moe_count(const Tensor& table, int64_t layers, int64_t experts, int64_t ranks, int64_t layer,
               const Tensor& ids) {
  const Checker check("moe_count", table);
  kdtree_moe_count_params p{};
  p.struct_bytes = sizeof p;
  p.table = table_of(check, table, layers, experts, ranks);
  check.require(layer >= 0 && layer < layers, "layer", "must be a row of the table", layer);
  check.on_device(ids, "ids");
  check.type(ids, "ids", {ScalarType::Int, ScalarType::Long});
  check.require(ids.dim() == 2 && (ids.numel() == 0 || ids.stride(1) == 1), "ids",
                "must be [tokens, k] with contiguous rows", shape_of(ids));
  check.require(ids.size(0) <= INT32_MAX && ids.size(1) <= INT32_MAX, "ids", "must be smaller",
                shape_of(ids));
  p.layer = static_cast<int32_t>(layer);
  p.ids = ids.data_ptr();
  p.ids_stride = ids.stride(0);
  p.ids_bits = ids.scalar_type() == ScalarType::Long ? 64 : 32;
  p.tokens = static_cast<int32_t>(ids.size(0));
  p.columns = static_cast<int32_t>(ids.size(1));
  launch(check, table, p, kdtree_moe_count_cpu, kdtree_moe_count_cuda);
}

void moe_end(const Tensor& table, int64_t layers, int64_t experts, int64_t ranks,
             const Tensor& copy, int64_t first, int64_t last) {
  const Checker check("moe_end", table);
  const kdtree_moe_table t = table_of(check, table, layers, experts, ranks);
  check_bytes(check, copy, "copy", kdtree_moe_copy_bytes(t.layers, t.experts, t.ranks));
  check.require(first >= 0 && first < layers, "first", "must be a row of the table", first);
  check.require(last >= first && last < layers, "last", "must be a row of the table", last);
  auto* to = pointer<kdtree_moe_head>(copy);
  const auto from_row = static_cast<int32_t>(first);
  const auto to_row = static_cast<int32_t>(last);
  launch(
      check, table, [&] { return kdtree_moe_end_cpu(&t, to, from_row, to_row); },
      [&](void* stream) { return kdtree_moe_end_cuda(&t, to, from_row, to_row, stream); });
}

}  // namespace kdtree::op
