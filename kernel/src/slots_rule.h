// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <kdtree/slots.h>

#include "gate_rule.h"

namespace kdtree {

// How many slots of a request with that prefix are looked at (slots.h).
KDTREE_HOST_DEVICE inline int64_t slots_seen(int64_t prefix, const kdtree_slots_params& p) {
  const int64_t share = p.max_slots / p.batch < 2 ? 2 : p.max_slots / p.batch;
  return prefix < share ? prefix : share;
}

}  // namespace kdtree
