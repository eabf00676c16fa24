// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "moe_table.h"
#include "ptx.cuh"

// The kernels of moe.cu.
namespace kdtree {

constexpr int kCountThreads = 128;
constexpr int kEndThreads = 256;

// kdtree_moe_count_params, worked out on the host as far as it goes.
struct MoeCount {
  const void* ids;
  const int32_t* rows;  // kdtree_moe_head's
  uint32_t* chosen;     // of the layer
  uint32_t* ran;        // of the layer
  int32_t assignments, columns, experts;
  int64_t ids_stride;

  explicit MoeCount(const kdtree_moe_count_params& p) : MoeCount(p, {p.table, p.table.head}) {}
  unsigned blocks() const {
    return (static_cast<unsigned>(assignments) + kCountThreads - 1) / kCountThreads;
  }
  bool dense() const { return ids_stride == columns; }

 private:
  MoeCount(const kdtree_moe_count_params& p, const MoeView& table)
      : ids(p.ids),
        rows(&p.table.head->rows),
        chosen(table.chosen(p.layer)),
        ran(table.ran(p.layer)),
        assignments(p.tokens * p.columns),
        columns(p.columns),
        experts(p.table.experts),
        ids_stride(p.ids_stride) {}
};

__global__ void begin_kernel(kdtree_moe_head* head, int32_t rows) {
  head->rows = rows;
  if (rows <= 0) return;
  head->steps += 1;
  head->tokens += static_cast<uint64_t>(rows);
}

// A thread an assignment, and nothing more: this kernel runs once a layer in every step, all else
// once a step. kDense: there is no gap between the rows.
template <typename Id, bool kDense>
__global__ void __launch_bounds__(kCountThreads)
    count_kernel(const __grid_constant__ MoeCount count) {
  const auto i = static_cast<int32_t>(blockIdx.x * kCountThreads + threadIdx.x);
  int64_t at = i;
  if (!kDense) {
    const int32_t row = i / count.columns;
    at = row * count.ids_stride + (i - row * count.columns);
  }
  const Id* id = static_cast<const Id*>(count.ids) + at;
  ptx::wait_for_previous();
  if (i >= count.assignments) return;
  // No branch between the two loads: they are under way together.
  const Id expert = *id;
  const int32_t rows = *count.rows;
  const bool counted = i < int64_t{rows} * count.columns;
  const bool known = static_cast<uint64_t>(expert) < static_cast<uint64_t>(count.experts);
  if (counted & known) ptx::add(count.chosen + expert, 1);
  if (counted & (i == 0)) *count.ran = 1;
}

__global__ void open_kernel(const kdtree_moe_head* head, volatile kdtree_moe_head* copy) {
  copy->sequence = head->sequence + 1;
  __threadfence_system();
}

struct MoePair {
  uint64_t* own;
  uint64_t* copy;
};
__device__ inline void grow(const MoePair& counter, uint64_t amount) {
  if (amount == 0) return;
  const uint64_t value = *counter.own + amount;
  *counter.own = value;
  *counter.copy = value;
}

// A block a layer; the last one that is through closes the copy, which open_kernel has opened.
__global__ void __launch_bounds__(kEndThreads)
    end_kernel(kdtree_moe_table table, kdtree_moe_head* copy, int32_t first, int32_t last) {
  __shared__ uint32_t loads[KDTREE_MOE_MAX_RANKS];
  __shared__ uint32_t unique, peak;
  const int me = static_cast<int>(threadIdx.x), ranks = table.ranks;
  if (me < KDTREE_MOE_MAX_RANKS) loads[me] = 0;
  if (me == 0) unique = peak = 0;
  __syncthreads();
  ptx::wait_for_previous();
  const int64_t layer = first + static_cast<int64_t>(blockIdx.x);
  const MoeView own(table, table.head), to(table, copy);
  if (*own.ran(layer) != 0) {
    const int experts_a_rank = ranks > 0 ? table.experts / ranks : 1;
    uint32_t mine = 0;
    for (int e = me; e < table.experts; e += kEndThreads) {
      const uint32_t tokens = own.chosen(layer)[e];
      if (tokens == 0) continue;
      own.chosen(layer)[e] = 0;
      grow({own.tokens(layer) + e, to.tokens(layer) + e}, tokens);
      if (ranks > 0) atomicAdd(&loads[e / experts_a_rank], tokens);
      ++mine;
    }
    if (mine > 0) atomicAdd(&unique, mine);
    __syncthreads();
    const uint32_t load = me < ranks ? loads[me] : 0;
    if (load > 0) atomicMax(&peak, load);
    __syncthreads();
    const bool fullest = load > 0 && load == peak;
    const int among = __syncthreads_count(fullest ? 1 : 0);
    if (me < ranks) {
      grow({own.idle(layer) + me, to.idle(layer) + me}, load == 0 ? 1 : 0);
      grow({own.straggler(layer) + me, to.straggler(layer) + me},
           fullest ? static_cast<uint64_t>(KDTREE_MOE_SHARE / among) : 0);
    }
    if (me == 0) {
      *own.ran(layer) = 0;
      grow({own.unique(layer), to.unique(layer)}, unique);
      grow({own.steps(layer), to.steps(layer)}, 1);
      grow({own.peak(layer), to.peak(layer)}, peak);
    }
  }
  __threadfence_system();
  __syncthreads();
  if (me != 0) return;
  const auto layers = static_cast<uint32_t>(last - first + 1);
  if (atomicAdd(&table.head->ended, 1u) != layers - 1) return;
  volatile kdtree_moe_head* shown = copy;
  table.head->ended = 0;
  table.head->rows = 0;
  table.head->sequence += 2;
  shown->steps = table.head->steps;
  shown->tokens = table.head->tokens;
  __threadfence_system();
  shown->sequence = table.head->sequence;
}

}  // namespace kdtree
