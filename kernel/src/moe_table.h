// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <kdtree/moe.h>

#include "gate_rule.h"

namespace kdtree {

// Where the parts of a table lie (moe.h).
struct MoeView {
  kdtree_moe_head* head;
  int64_t layers, experts, ranks;

  KDTREE_HOST_DEVICE MoeView(const kdtree_moe_table& table, kdtree_moe_head* at)
      : head(at), layers(table.layers), experts(table.experts), ranks(table.ranks) {}

  KDTREE_HOST_DEVICE uint64_t* tokens(int64_t layer) const {
    return reinterpret_cast<uint64_t*>(head + 1) + layer * experts;
  }
  KDTREE_HOST_DEVICE uint64_t* unique(int64_t layer) const { return tokens(layers) + layer; }
  KDTREE_HOST_DEVICE uint64_t* steps(int64_t layer) const { return unique(layers) + layer; }
  KDTREE_HOST_DEVICE uint64_t* peak(int64_t layer) const { return steps(layers) + layer; }
  KDTREE_HOST_DEVICE uint64_t* idle(int64_t layer) const { return peak(layers) + layer * ranks; }
  KDTREE_HOST_DEVICE uint64_t* straggler(int64_t layer) const {
    return idle(layers) + layer * ranks;
  }
  // Not in a copy.
  KDTREE_HOST_DEVICE uint32_t* chosen(int64_t layer) const {
    return reinterpret_cast<uint32_t*>(straggler(layers)) + layer * experts;
  }
  KDTREE_HOST_DEVICE uint32_t* ran(int64_t layer) const { return chosen(layers) + layer; }
};

}  // namespace kdtree
