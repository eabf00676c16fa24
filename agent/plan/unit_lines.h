// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include "agent/config/config.h"
#include "agent/plan/engine_unit.h"
#include "agent/plan/facts.h"
#include "agent/systemd/unit_state.h"

// The engine's unit as systemd has it, a line a value: where it comes from, as whom it runs, its
// environment, its command line (a line a flag). What a plan shows as a difference. Pure.
namespace kdtree {

// Empty for a unit that doesn't exist.
std::vector<std::string> unit_lines(const UnitState& unit);

// What systemd will have with `unit` in force. Specifiers in what is new stand as written; systemd
// expands them.
std::vector<std::string> unit_lines_after(const Facts& facts, const Config& config,
                                          const EngineUnit& unit);

}  // namespace kdtree
