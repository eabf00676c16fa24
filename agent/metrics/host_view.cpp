// SPDX-License-Identifier: Apache-2.0
#include "agent/metrics/host_view.h"

#include <nlohmann/json.hpp>
#include <system_error>

#include "agent/util/file.h"

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

// What the current release was made for; a manifest that says nothing is kdtreectl's to judge.
void read_made_for(const Root& root, HostView& view) {
  if (view.current_release.empty()) return;
  const auto text = read_file(root(paths::kReleases) / view.current_release / "manifest.json");
  if (!text) return;
  const auto manifest = nlohmann::json::parse(*text, nullptr, false);
  if (!manifest.is_object()) return;
  const auto said = [&manifest](const char* name) {
    const auto at = manifest.find(name);
    return at != manifest.end() && at->is_string() ? at->get<std::string>() : std::string();
  };
  view.made_for_engine = said("engine_fingerprint");
  view.made_for_torch = said("torch");
}

// One flag of kdtreectl's state.json; the rest of it is kdtreectl's own.
void read_trial(const Root& root, HostView& view) {
  const auto path = root(paths::kState) / "state.json";
  const auto text = read_file_if_there(path);
  if (text && !*text) return;
  if (text) {
    const auto state = nlohmann::json::parse(**text, nullptr, false);
    const auto flag = state.is_object() ? state.find("trial") : state.end();
    if (flag != state.end() && flag->is_boolean()) {
      view.trial = flag->get<bool>();
      return;
    }
  }
  view.host_readable = false;
  view.problems.push_back(text ? path.string() + ": no flag \"trial\" in it" : text.error().what);
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
  read_made_for(root, view);
  read_trial(root, view);
  if (auto stats = read_stats_dir(root, stats_dir, RoutingTables::of_lowest_rank))
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
