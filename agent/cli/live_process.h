// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <string_view>

#include "agent/stats/rank_stats.h"
#include "agent/util/root.h"

namespace kdtree {

// What the kernel knows of a rank's process (/proc/PID/environ, /proc/PID/maps; root may read them)
// against what the process reports and what release it should run. "" = no difference, or it has
// ended meanwhile; else one line. An environ that a process title was written over is left out.
std::string live_drift(const Root& root, const RankStats& stats, const std::string& release);

// sha256 as in kdtree_stats_header::environment_sha256, of the text of an environ file.
std::string environment_digest(std::string_view environ);

}  // namespace kdtree
