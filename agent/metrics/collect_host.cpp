// SPDX-License-Identifier: Apache-2.0
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <optional>

#include "agent/metrics/collect.h"

namespace kdtree {
namespace {

// What the control file says; while there is none (after a restart), what all living ranks were
// started in.
std::optional<Mode> meant_mode(const HostView& view) {
  if (view.control) return view.control->mode;
  std::optional<Mode> common;
  for (const auto& [rank, stats] : living_ranks(view)) {
    if (!stats->start_mode || (common && *common != *stats->start_mode)) return std::nullopt;
    common = stats->start_mode;
  }
  return common;
}

// Of all processes: one that stands aside may not have a rank yet.
void add_engine_drift(Exposition& out, const HostView& view) {
  if (!view.stats || view.made_for_engine.empty()) return;
  const auto other = [](const std::string& now, const std::string& then) {
    return !now.empty() && !then.empty() && now != then;
  };
  std::optional<bool> differs;
  for (const StatsFile& file : view.stats->files)
    if (file.stats)
      differs = differs.value_or(false) ||
                other(file.stats->engine_fingerprint, view.made_for_engine) ||
                other(file.stats->torch_version, view.made_for_torch);
  if (differs) out.add(Metric::drift, {"engine"}, *differs ? 1 : 0);
}

void add_drift(Exposition& out, const HostView& view) {
  const auto ranks = living_ranks(view);
  if (ranks.empty()) return;
  const auto any = [&](auto&& differs) {
    return std::any_of(ranks.begin(), ranks.end(),
                       [&](const auto& entry) { return differs(*entry.second); });
  };
  const auto active = [](const RankStats& rank) { return rank.patch_state == PatchState::active; };
  if (const auto meant = meant_mode(view))
    out.add(Metric::drift, {"mode"},
            any([&](const RankStats& rank) { return active(rank) && rank.mode != *meant; }));
  if (!view.current_release.empty())
    out.add(Metric::drift, {"release"},
            any([&](const RankStats& rank) { return rank.release_id != view.current_release; }));
  if (view.config) {
    const auto armed = std::count_if(ranks.begin(), ranks.end(),
                                     [&](const auto& entry) { return active(*entry.second); });
    out.add(Metric::drift, {"ranks"}, armed != view.config->engine.ranks);
  }
}

}  // namespace

void add_host_metrics(Exposition& out, const HostView& view) {
  out.add(Metric::host_up, view.host_readable ? 1 : 0);
  if (const auto meant = meant_mode(view))
    for (const Mode mode : kAllModes)
      out.add(Metric::mode, {std::string(to_string(mode))}, *meant == mode ? 1 : 0);
  if (view.control)
    out.add(Metric::control_generation, static_cast<double>(view.control->generation));
  if (!view.current_release.empty()) out.add(Metric::release_info, {view.current_release}, 1);
  if (view.trial) out.add(Metric::trial, *view.trial ? 1 : 0);
  add_engine_drift(out, view);
  add_drift(out, view);
}

void add_agent_metrics(Exposition& out, std::chrono::system_clock::time_point started) {
  out.add(Metric::agent_build_info, {KDTREE_VERSION}, 1);
  rusage usage{};
  if (::getrusage(RUSAGE_SELF, &usage) == 0) {
    const auto seconds = [](const timeval& time) {
      return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_usec) / 1e6;
    };
    out.add(Metric::agent_cpu_seconds, seconds(usage.ru_utime) + seconds(usage.ru_stime));
  }
  std::ifstream statm("/proc/self/statm");
  double size_pages = 0;
  double resident_pages = 0;
  if (statm >> size_pages >> resident_pages)
    out.add(Metric::agent_resident_memory,
            resident_pages * static_cast<double>(::sysconf(_SC_PAGESIZE)));
  out.add(Metric::agent_start_time,
          std::chrono::duration<double>(started.time_since_epoch()).count());
}

}  // namespace kdtree
