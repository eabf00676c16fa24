// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "agent/config/config.h"
#include "agent/plan/facts.h"
#include "agent/systemd/unit_state.h"
#include "agent/util/run_as.h"
#include "agent/util/subprocess.h"

namespace kdtree {

// Who the engine runs as, if that is another user than root and we are root: its interpreter and
// compiler may belong to them. Errors: refused: no such user.
Result<std::optional<RunAs>> engine_user(const Config& config, const UnitState& unit);

// `engine.python ARGS...` as engine_user(), with PYTHONPATH set to `python_path`, no KDTREE_* of
// ours, and no bytecode written. Errors: refused: root would run it and others can change it.
Result<Command> engine_command(const Config& config, const UnitState& unit,
                               const std::filesystem::path& python_path,
                               std::vector<std::string> args);

// `python -m kdtree_patch.probe --json` of the installed patch: which engine is there, would the
// patch bind to it. Errors: refused: the interpreter can't be run, or its answer can't be read.
Result<EngineFacts> probe_engine(const Config& config, const UnitState& unit,
                                 const std::filesystem::path& python_path);

struct SelftestAnswer {
  bool passed = false;
  std::string device;  // "cpu" or the GPU's name
  int cases = 0;
  std::string torch;
  std::vector<std::string> proven_kv;              // types of KV pool beside the model's own
  std::map<std::string, std::string> unproven_kv;  // the others, and why not
  std::string worst;   // the worst case, "case all, relative 0.001"; "" = none given
  std::string output;  // the whole answer, JSON text
};

// `python -m kdtree_kernel.selftest --lib LIB --json` of a release. `device`: "" = the best there
// is. Errors: refused: it can't be run or its answer can't be read; a failed test is a value.
Result<SelftestAnswer> run_selftest(const Config& config, const UnitState& unit,
                                    const std::filesystem::path& release, const std::string& device,
                                    std::chrono::milliseconds deadline);

}  // namespace kdtree
