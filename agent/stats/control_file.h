// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "agent/stats/control_abi.h"
#include "agent/util/mode.h"
#include "agent/util/result.h"
#include "agent/util/root.h"

// The control file (control_abi.h): the mode that armed engine processes are to be in, now.
namespace kdtree {

struct Control {
  Mode mode = Mode::off;
  std::uint64_t generation = 0;  // RankStats::control_generation of a worker that obeyed
  std::string release_id;        // "" = workers of any release obey
};

// nullopt: there is no control file (the environment's mode holds).
// Errors: it is there and is not a control file of this version, or can't be read.
Result<std::optional<Control>> read_control(const Root& root);

// Puts a new control file in force, atomically, and says with which generation. The folder must
// exist. Generations grow within one boot, even over a damaged file. Errors: release_id longer than
// 63 bytes; the folder can't be written.
Result<Control> write_control(const Root& root, Mode mode, const std::string& release_id);

}  // namespace kdtree
