// SPDX-License-Identifier: Apache-2.0
#include "agent/gate/ranks.h"

#include <algorithm>

namespace kdtree {
namespace {

void place(const RankStats& stats, RankSet& set) {
  if (!stats.tp_rank) {
    set.others.push_back(stats);
    return;
  }
  const int rank = *stats.tp_rank;
  if (rank < 0 || rank >= static_cast<int>(set.ranks.size())) {
    set.conflicts.push_back("process " + std::to_string(stats.pid) + " is rank " +
                            std::to_string(rank) + ", but engine.ranks is " +
                            std::to_string(set.ranks.size()));
    set.others.push_back(stats);
    return;
  }
  auto& view = set.ranks[static_cast<std::size_t>(rank)];
  if (view.stats)
    set.conflicts.push_back("processes " + std::to_string(view.stats->pid) + " and " +
                            std::to_string(stats.pid) + " both say that they are rank " +
                            std::to_string(rank));
  if (!view.stats || stats.pid_start_ticks > view.stats->pid_start_ticks) view.stats = stats;
}

void explain(const StatsFile& file, RankSet& set) {
  if (!file.writer || !file.writer->tp_rank) return;
  const int rank = *file.writer->tp_rank;
  if (rank < 0 || rank >= static_cast<int>(set.ranks.size())) return;
  auto& view = set.ranks[static_cast<std::size_t>(rank)];
  if (view.stats) return;
  const std::string process = "process " + std::to_string(file.writer->pid);
  view.missing =
      file.outcome == StatsOutcome::dead ? process + " has ended" : process + " is silent";
}

}  // namespace

int RankSet::present() const {
  return static_cast<int>(
      std::ranges::count_if(ranks, [](auto& view) { return view.stats.has_value(); }));
}

int RankSet::armed() const {
  return static_cast<int>(std::ranges::count_if(ranks, [](auto& view) {
    return view.stats && view.stats->patch_state == PatchState::active;
  }));
}

RankSet sort_by_rank(const StatsDir& dir, int expected) {
  RankSet set;
  for (int rank = 0; rank < expected; ++rank)
    set.ranks.push_back({rank, std::nullopt, "no stats file"});
  for (const auto& file : dir.files)
    if (file.stats) place(*file.stats, set);
  for (const auto& file : dir.files) {
    if (file.outcome == StatsOutcome::dead || file.outcome == StatsOutcome::stale)
      explain(file, set);
    else if (file.outcome != StatsOutcome::ok)
      set.unreadable.push_back(file);
  }
  for (auto& view : set.ranks)
    if (view.stats) view.missing.clear();
  return set;
}

Result<RankSet> read_ranks(const Root& root, int expected) {
  KDTREE_TRY_ASSIGN(auto dir, read_stats_dir(root, root(paths::kStats)));
  return sort_by_rank(dir, expected);
}

}  // namespace kdtree
