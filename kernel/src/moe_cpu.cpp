// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <array>
#include <atomic>
#include <cstring>
#include <span>
#include <utility>

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
  if (rows <= 0 || p.columns == 0) return;
  *table.ran(p.layer) = 1;
  for (int64_t row = 0; row < rows; ++row)
    for (int64_t column = 0; column < p.columns; ++column) {
      const int64_t expert = index_at(p.ids, p.ids_bits, row * p.ids_stride + column);
      if (expert >= 0 && expert < p.table.experts) ++table.chosen(p.layer)[expert];
    }
}

void add_pass(const MoeView& table, int64_t layer) {
  if (std::exchange(*table.ran(layer), 0) == 0) return;
  std::array<uint64_t, KDTREE_MOE_MAX_RANKS> loads{};
  for (int64_t expert = 0; expert < table.experts; ++expert) {
    const uint32_t tokens = std::exchange(table.chosen(layer)[expert], 0);
    table.tokens(layer)[expert] += tokens;
    *table.unique(layer) += tokens > 0 ? 1 : 0;
    if (table.ranks > 0)
      loads[static_cast<size_t>(expert / (table.experts / table.ranks))] += tokens;
  }
  ++*table.steps(layer);
  const auto ranks = std::span(loads).first(static_cast<size_t>(table.ranks));
  const uint64_t peak = ranks.empty() ? 0 : *std::ranges::max_element(ranks);
  *table.peak(layer) += peak;
  for (size_t rank = 0; rank < ranks.size(); ++rank) {
    table.idle(layer)[rank] += ranks[rank] == 0 ? 1 : 0;
    if (peak > 0 && ranks[rank] == peak)
      table.straggler(layer)[rank] +=
          KDTREE_MOE_SHARE / static_cast<uint64_t>(std::ranges::count(ranks, peak));
  }
}

void copy_words(uint64_t* to, const uint64_t* from, int64_t words) {
  std::memcpy(to, from, static_cast<size_t>(words) * sizeof(uint64_t));
}

int64_t copied_words(int64_t layers, int64_t experts, int64_t ranks) {
  return layers * (experts + 3 + 2 * ranks);
}

}  // namespace
}  // namespace kdtree

int64_t kdtree_moe_table_bytes(int32_t layers, int32_t experts, int32_t ranks) {
  kdtree_moe_head head{};
  const kdtree_moe_table table{&head, layers, experts, ranks, 0};
  if (const int status = kdtree::check(table); status != KDTREE_OK) return status;
  const int64_t bytes = kdtree_moe_copy_bytes(layers, experts, ranks);
  const int64_t halves = int64_t{layers} * (experts + 1);
  return bytes + (halves + 1) / 2 * static_cast<int64_t>(sizeof(uint64_t));
}

int64_t kdtree_moe_copy_bytes(int32_t layers, int32_t experts, int32_t ranks) {
  kdtree_moe_head head{};
  const kdtree_moe_table table{&head, layers, experts, ranks, 0};
  if (const int status = kdtree::check(table); status != KDTREE_OK) return status;
  return static_cast<int64_t>(
      sizeof head +
      sizeof(uint64_t) * static_cast<size_t>(kdtree::copied_words(layers, experts, ranks)));
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
  for (int64_t layer = first; layer <= last; ++layer) add_pass(from, layer);
  const int64_t layers = last - first + 1;
  copy_words(to.tokens(first), from.tokens(first), layers * table->experts);
  copy_words(to.unique(first), from.unique(first), layers);
  copy_words(to.steps(first), from.steps(first), layers);
  copy_words(to.peak(first), from.peak(first), layers);
  copy_words(to.idle(first), from.idle(first), layers * table->ranks);
  copy_words(to.straggler(first), from.straggler(first), layers * table->ranks);
  std::atomic_thread_fence(std::memory_order_seq_cst);
  sequence.fetch_add(1, std::memory_order_seq_cst);
  return KDTREE_OK;
}
