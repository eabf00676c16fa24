// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include "agent/config/config.h"
#include "agent/plan/facts.h"
#include "agent/plan/state.h"
#include "agent/util/result.h"

// What systemd is told about the engine: our drop-in behind an existing unit, or the whole unit.
// Pure.
namespace kdtree {

struct EngineUnit {
  std::string path;              // of the drop-in or unit
  std::string text;              // "" = no such file in this state
  std::string environment_path;  // /etc/kdtree/engine.env
  std::string
      environment_text;         // "" = not needed: no EnvironmentFile= of the unit sets what we set
  std::string exec_start;       // the raw command line that is then in force
  std::string base_exec_start;  // the one without kdtree
  std::vector<std::string> notes;
};

// For `target`; none and cold mean: without kdtree. Errors: refused or usage: the unit or its
// command line can't be understood, or something on the host overrides what would be written.
Result<EngineUnit> make_engine_unit(const Facts& facts, const Config& config,
                                    const Deployed& target);

// Where make_engine_unit writes.
std::string engine_unit_path(const Config& config);
inline constexpr const char* kEngineEnvironment = "/etc/kdtree/engine.env";

// Does the text carry our head line?
bool is_written_by_kdtree(const std::string& unit_text);

// Equal for two texts between which armed workers can switch without a restart: what [Service]
// sets, but for the mode. Comments and other sections don't count; a text that can't be parsed is
// itself.
std::string without_mode(const std::string& unit_text);

// The ExecStart= that the text alone leaves in force; "" = none.
std::string exec_start_of(const std::string& unit_text);

}  // namespace kdtree
