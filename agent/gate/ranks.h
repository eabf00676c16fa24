// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "agent/stats/rank_stats.h"
#include "agent/stats/stats_reader.h"
#include "agent/util/result.h"
#include "agent/util/root.h"

namespace kdtree {

// One expected rank and what is known of it now.
struct RankView {
  int rank = 0;
  std::optional<RankStats> stats;  // nullopt: nobody speaks for this rank
  std::string missing;             // why stats is empty: "no stats file", "process 4711 has ended"
};

// All that the engine's processes say at one moment.
struct RankSet {
  std::vector<RankView> ranks;        // exactly the expected ones, index = rank
  std::vector<RankStats> others;      // alive, but no rank (yet): launcher, detokenizer
  std::vector<StatsFile> unreadable;  // torn, damaged, foreign, ...: not dead or stale ones
  std::vector<std::string>
      conflicts;  // two living processes claim one rank; a rank beyond those expected

  int present() const;  // ranks with stats
  int armed() const;    // ranks whose patch is active
};

// Pure; `dir` as read by read_stats_dir().
RankSet sort_by_rank(const StatsDir& dir, int expected);

// Reads paths::kStats under `root`.
Result<RankSet> read_ranks(const Root& root, int expected);

}  // namespace kdtree
