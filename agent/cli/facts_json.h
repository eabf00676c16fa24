// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <nlohmann/json.hpp>

#include "agent/gate/ranks.h"
#include "agent/gate/verdict.h"
#include "agent/systemd/unit_state.h"

// Facts as --json prints them. An unknown value is null, never 0.
namespace kdtree {

nlohmann::ordered_json to_json(const Verdict& verdict, const ValidateConfig& limits);
nlohmann::ordered_json to_json(const RankView& view);
nlohmann::ordered_json to_json(const UnitState& unit);

}  // namespace kdtree
