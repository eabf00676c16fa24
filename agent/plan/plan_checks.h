// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "agent/plan/plan.h"

namespace kdtree {

// May this host be brought to what is wished for? Pure; used by make_plan before it plans anything.
// Errors: refused, each with what to do.
Status check_target(const Facts& facts, const Config& config, const Wish& wish);

// What of the host a release depends on, as far as `facts` know it.
Ground ground_of(const Facts& facts);

}  // namespace kdtree
