// SPDX-License-Identifier: Apache-2.0
#include "agent/metrics/collect.h"
#include "agent/util/clock.h"

namespace kdtree {
namespace {

double number(std::uint64_t value) { return static_cast<double>(value); }

void add_state(Exposition& out, const std::string& rank, const RankStats& stats) {
  const bool active = stats.patch_state == PatchState::active;
  out.add(Metric::rank_active, {rank}, active ? 1 : 0);
  out.add(
      Metric::rank_info,
      {rank, std::to_string(stats.pid), stats.release_id, stats.engine_version, stats.torch_version,
       std::string(patch_state_name(stats.patch_state)), stats.device_name, stats.device_uuid},
      1);
  if (active)
    for (const Mode mode : kAllModes)
      out.add(Metric::rank_mode, {rank, std::string(to_string(mode))}, stats.mode == mode ? 1 : 0);
  out.add(Metric::rank_control_generation, {rank}, number(stats.control_generation));
  const auto now = std::chrono::nanoseconds(static_cast<std::int64_t>(boottime_ns()));
  out.add(Metric::rank_publication_age, {rank},
          std::chrono::duration<double>(now - stats.updated).count());
  if (stats.graphs) out.add(Metric::rank_graphs, {rank}, *stats.graphs ? 1 : 0);
  if (stats.sort_state != SortState::unknown)
    out.add(Metric::rank_sorts, {rank}, stats.sort_state == SortState::confirmed ? 1 : 0);
}

void add_verify(Exposition& out, const std::string& rank, const RankStats& stats) {
  out.add(Metric::verify_calls, {rank, "kernel"}, number(stats.calls_kernel));
  out.add(Metric::verify_calls, {rank, "engine"}, number(stats.calls_engine));
  for (std::size_t i = 0; i < stats.handed_back.size(); ++i)
    if (stats.handed_back[i] > 0)
      out.add(Metric::verify_handed_back, {rank, hand_back_name(i)}, number(stats.handed_back[i]));
  out.add(Metric::verify_compares, {rank}, number(stats.compares));
  for (const BatchCompares& batch : stats.batches)
    if (batch.compares > 0)
      out.add(Metric::verify_batch_compares,
              {rank, batch.batch == 0 ? "other" : std::to_string(batch.batch)},
              number(batch.compares));
  out.add(Metric::verify_mismatches, {rank}, number(stats.mismatches));
  out.add(Metric::verify_mean_difference_sum, {rank}, stats.sum_mean_ulp);
  if (stats.max_abs) out.add(Metric::verify_max_abs_difference, {rank}, *stats.max_abs);
  if (stats.max_ulp) out.add(Metric::verify_max_difference_ulps, {rank}, *stats.max_ulp);
  if (stats.max_mean_ulp)
    out.add(Metric::verify_max_mean_difference_ulps, {rank}, *stats.max_mean_ulp);
  if (stats.compares > 0)
    out.add(Metric::verify_longest_prefix, {rank}, number(stats.longest_prefix));
  if (stats.kv_pairs > 0)
    out.add(Metric::kv_contiguous, {rank},
            number(stats.kv_contiguous_pairs) / number(stats.kv_pairs));
}

}  // namespace

void add_rank_metrics(Exposition& out, const HostView& view, const std::set<int>& seen) {
  if (view.config) out.add(Metric::ranks_expected, view.config->engine.ranks);
  out.add(Metric::stats_up, view.stats ? 1 : 0);
  if (!view.stats) return;

  std::map<StatsOutcome, int> files;
  for (const StatsFile& file : view.stats->files) ++files[file.outcome];
  for (const StatsOutcome outcome : all_outcomes())
    out.add(Metric::stats_files, {std::string(outcome_name(outcome))}, files[outcome]);

  std::map<PatchState, int> processes;
  for (const StatsFile& file : view.stats->files)
    if (file.stats) ++processes[file.stats->patch_state];
  for (const PatchState state : {PatchState::active, PatchState::passive, PatchState::refused})
    out.add(Metric::patch_processes, {std::string(patch_state_name(state))}, processes[state]);

  const auto ranks = living_ranks(view);
  std::set<int> shown = seen;
  for (const auto& [rank, stats] : ranks) shown.insert(rank);
  if (view.config)
    for (int rank = 0; rank < view.config->engine.ranks; ++rank) shown.insert(rank);
  for (const int rank : shown)
    out.add(Metric::rank_up, {std::to_string(rank)}, ranks.contains(rank) ? 1 : 0);
  for (const auto& [rank, stats] : ranks) {
    add_state(out, std::to_string(rank), *stats);
    add_verify(out, std::to_string(rank), *stats);
  }
}

}  // namespace kdtree
