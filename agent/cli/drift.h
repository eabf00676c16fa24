// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "agent/gate/ranks.h"
#include "agent/plan/manifest.h"
#include "agent/plan/state.h"
#include "agent/stats/control_file.h"
#include "agent/systemd/unit_state.h"
#include "agent/util/root.h"

namespace kdtree {

// One thing that is not as kdtreectl left it.
struct DriftLine {
  std::string kind;  // "file", "link", "unit", "environment", "reload", "control", "rank",
                     // "engine", "process", "trial", "cut-off"
  std::string text;  // one line, names the thing
  std::string next;  // what to do; "" = the text says it
};

// What leads on where the host is not what the release was made for.
inline constexpr const char* kUpgrade =
    "kdtreectl deploy; /usr/share/kdtree/runbooks/upgrade.md says how";

struct DriftFacts {
  State state;
  std::optional<Manifest> release;
  std::optional<Control> control;
  UnitState unit;
  RankSet ranks;
  bool cut_off = false;  // a journal without an end lies there
  bool live = false;     // we may look into the ranks' processes: what they report is checked there
};

// Reads managed files and links under `root` and compares everything with state.json. Files that
// may not be read are left out. Empty on a host where nothing is deployed and nothing was cut off.
std::vector<DriftLine> find_drift(const Root& root, const DriftFacts& facts);

}  // namespace kdtree
