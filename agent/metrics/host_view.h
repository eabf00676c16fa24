// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "agent/config/config.h"
#include "agent/stats/control_file.h"
#include "agent/stats/stats_reader.h"
#include "agent/util/root.h"

namespace kdtree {

// What the files of this host say at one moment.
struct HostView {
  std::optional<StatsDir> stats;  // nullopt: the folder can't be listed
  bool host_readable =
      true;  // configuration, control file, state and release: each read, or plainly not there
  std::optional<Config> config;  // nullopt: there is none, or it can't be used
  std::optional<Control> control;
  std::string current_release;        // "" = none
  std::string made_for_engine;        // fingerprint in that release's manifest; "" = unknown
  std::string made_for_torch;         // the same
  std::optional<bool> trial;          // a change is not confirmed yet; nullopt: not known
  std::vector<std::string> problems;  // one line each, for the log
};

HostView read_host_view(const Root& root, const std::filesystem::path& stats_dir);

// The living ranks of `view`, by rank; the youngest publication where two processes claim one rank.
std::map<int, const RankStats*> living_ranks(const HostView& view);

}  // namespace kdtree
