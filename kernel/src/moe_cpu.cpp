// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <atomic>
#include <bitset>
#include <cstring>

#include "checks.h"
#include "moe_table.h"

namespace kdtree {
namespace {

int64_t index_at(const void* array, int32_t bits, int64_t at) {
  return bits == 64 ? static_cast<const int64_t*>(array)[at]
                    : static_cast<const int32_t*>(array)[at];
}

void count(const kdtree_moe_count_params& p) {
  const MoeView table(p.table, p.table.head);
  const int64_t rows = std::min(p.table.head->rows, p.tokens);
  if (rows <= 0) return;
  std::bitset<KDTREE_MOE_MAX_EXPERTS> chosen;
  std::bitset<KDTREE_MOE_MAX_RANKS> busy;
  for (int64_t row = 0; row < rows; ++row)
    for (int64_t column = 0; column < p.columns; ++column) {
      const int64_t expert = index_at(p.ids, p.ids_bits, row * p.ids_stride + column);
      if (expert < 0 || expert >= p.table.experts) continue;
      ++table.tokens(p.layer)[expert];
      chosen.set(static_cast<size_t>(expert));
      if (p.table.ranks > 0)
        busy.set(static_cast<size_t>(expert / (p.table.experts / p.table.ranks)));
    }
  *table.unique(p.layer) += chosen.count();
  ++*table.steps(p.layer);
  for (int32_t rank = 0; rank < p.table.ranks; ++rank)
    if (!busy.test(static_cast<size_t>(rank))) ++table.idle(p.layer)[rank];
}

void copy_words(uint64_t* to, const uint64_t* from, int64_t words) {
  std::memcpy(to, from, static_cast<size_t>(words) * sizeof(uint64_t));
}

}  // namespace
}  // namespace kdtree

int64_t kdtree_moe_table_bytes(int32_t layers, int32_t experts, int32_t ranks) {
  kdtree_moe_head head{};
  const kdtree_moe_table table{&head, layers, experts, ranks, 0};
  if (const int status = kdtree::check(table); status != KDTREE_OK) return status;
  const int64_t words = int64_t{layers} * (int64_t{experts} + 2 + ranks);
  return static_cast<int64_t>(sizeof head) + words * static_cast<int64_t>(sizeof(uint64_t));
}

int kdtree_moe_begin_cpu(const kdtree_moe_table* table, int32_t rows) {
  if (table == nullptr) return KDTREE_BAD_POINTER;
  if (const int status = kdtree::check(*table); status != KDTREE_OK) return status;
  table->head->rows = rows;
  if (rows <= 0) return KDTREE_OK;
  ++table->head->steps;
  table->head->tokens += static_cast<uint64_t>(rows);
  return KDTREE_OK;
}

int kdtree_moe_count_cpu(const kdtree_moe_count_params* params) {
  if (params == nullptr) return KDTREE_BAD_POINTER;
  if (const int status = kdtree::check(*params); status != KDTREE_OK) return status;
  kdtree::count(*params);
  return KDTREE_OK;
}

int kdtree_moe_end_cpu(const kdtree_moe_table* table, kdtree_moe_head* copy, int32_t first,
                       int32_t last) {
  using namespace kdtree;
  if (table == nullptr) return KDTREE_BAD_POINTER;
  if (const int status = check(*table, copy, first, last); status != KDTREE_OK) return status;
  const MoeView from(*table, table->head);
  const MoeView to(*table, copy);
  table->head->rows = 0;
  const std::atomic_ref sequence(copy->sequence);
  sequence.fetch_add(1, std::memory_order_seq_cst);
  std::atomic_thread_fence(std::memory_order_seq_cst);
  copy->steps = table->head->steps;
  copy->tokens = table->head->tokens;
  const int64_t layers = last - first + 1;
  copy_words(to.tokens(first), from.tokens(first), layers * table->experts);
  copy_words(to.unique(first), from.unique(first), layers);
  copy_words(to.steps(first), from.steps(first), layers);
  copy_words(to.idle(first), from.idle(first), layers * table->ranks);
  std::atomic_thread_fence(std::memory_order_seq_cst);
  sequence.fetch_add(1, std::memory_order_seq_cst);
  return KDTREE_OK;
}
