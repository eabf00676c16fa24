// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include "agent/plan/facts.h"
#include "agent/util/root.h"

namespace kdtree {

// What somebody put under the engine by hand: start-up hooks that patch it, an engine whose
// installed source was patched, KDTREE_ variables in the unit. `site`: the engine's site-packages,
// "" = unknown.
std::vector<HandMade> find_hand_made(const Root& root, const EngineUnitFacts& unit,
                                     const std::string& site);

// Other start-up hooks, which kdtree's own calls: files that exist.
std::vector<std::string> other_hooks(const Root& root, const UnitState& unit,
                                     const std::string& site);

}  // namespace kdtree
