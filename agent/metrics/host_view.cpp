// SPDX-License-Identifier: Apache-2.0
#include "agent/metrics/host_view.h"

#include <unistd.h>

#include <system_error>

namespace kdtree {
namespace {

constexpr int kMaxRank = 1023;  // more than that is nonsense in a file

void read_config(const Root& root, HostView& view) {
  std::error_code error;
  const bool there = std::filesystem::exists(root(paths::kConfig), error);
  if (!there && !error) return;
  if (auto config = load_config(root)) {
    view.config = std::move(*config);
  } else {
    view.host_readable = false;
    view.problems.push_back(config.error().what);
  }
}

void read_current(const Root& root, HostView& view) {
  std::error_code error;
  const auto target = std::filesystem::read_symlink(root(paths::kCurrent), error);
  if (!error) {
    view.current_release = target.filename().string();
  } else if (error != std::errc::no_such_file_or_directory) {
    view.host_readable = false;
    view.problems.push_back(std::string(paths::kCurrent) + ": " + error.message());
  }
}

}  // namespace

HostView read_host_view(const Root& root, const std::filesystem::path& stats_dir) {
  HostView view;
  read_config(root, view);
  if (auto control = read_control(root)) {
    view.control = std::move(*control);
  } else {
    view.host_readable = false;
    view.problems.push_back(control.error().what);
  }
  read_current(root, view);
  if (auto stats = read_stats_dir(root, stats_dir))
    view.stats = std::move(*stats);
  else
    view.problems.push_back(stats.error().what);
  return view;
}

std::map<int, const RankStats*> living_ranks(const HostView& view) {
  std::map<int, const RankStats*> ranks;
  if (!view.stats) return ranks;
  for (const StatsFile& file : view.stats->files) {
    if (!file.stats || !file.stats->tp_rank || *file.stats->tp_rank > kMaxRank) continue;
    const RankStats*& kept = ranks[*file.stats->tp_rank];
    if (kept == nullptr || kept->updated < file.stats->updated) kept = &*file.stats;
  }
  return ranks;
}

}  // namespace kdtree
