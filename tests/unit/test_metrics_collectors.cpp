// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include "agent/metrics/collect.h"
#include "agent/metrics/scrape_text.h"
#include "agent/util/clock.h"

namespace kdtree {
namespace {

using namespace std::chrono_literals;

// The series by "name{label values in name order}".
class Scrape {
 public:
  explicit Scrape(const Exposition& out) {
    const auto scraped = parse_scrape(as_text(out.families())).value();
    for (const Series& series : scraped) {
      std::string key = series.name;
      for (const auto& [name, value] : series.labels) key += "|" + value;
      values_[key] = series.value;
    }
  }
  std::optional<double> operator[](const std::string& key) const {
    const auto found = values_.find(key);
    return found == values_.end() ? std::nullopt : std::optional(found->second);
  }
  bool has_family(const std::string& name) const {
    for (const auto& [key, value] : values_)
      if (key == name || key.starts_with(name + "|")) return true;
    return false;
  }

 private:
  std::map<std::string, double> values_;
};

GpuSnapshot good_gpu(int index) {
  GpuSnapshot gpu;
  gpu.index = index;
  gpu.uuid = "GPU-" + std::to_string(index);
  gpu.condition = GpuCondition::ok;
  gpu.sample_age = 0.5s;
  gpu.values = GpuValues{};
  gpu.values->utilization = 0.87;
  gpu.values->memory_used_bytes = 123;
  gpu.busy = 4s;
  gpu.observed = 8s;
  return gpu;
}

TEST(GpuMetrics, ShowsWhatIsKnown) {
  NvmlSnapshot nvml;
  nvml.visible = 1;
  nvml.events = true;
  nvml.gpus = {good_gpu(0)};
  nvml.gpus[0].xids[79] = {2, std::chrono::system_clock::time_point(1000s)};
  Config config;
  config.engine.ranks = 8;
  Exposition out;
  add_gpu_metrics(out, nvml, &config);
  const Scrape seen(out);
  EXPECT_EQ(seen["kdtree_nvml_up"], 1);
  EXPECT_EQ(seen["kdtree_gpus_visible"], 1);
  EXPECT_EQ(seen["kdtree_gpus_expected"], 8);
  EXPECT_EQ(seen["kdtree_gpu_utilization_ratio|0|GPU-0"], 0.87);
  EXPECT_EQ(seen["kdtree_gpu_memory_used_bytes|0|GPU-0"], 123);
  EXPECT_EQ(seen["kdtree_gpu_busy_seconds_total|0|GPU-0"], 4);
  EXPECT_EQ(seen["kdtree_gpu_observed_seconds_total|0|GPU-0"], 8);
  EXPECT_EQ(seen["kdtree_gpu_xid_errors_total|0|GPU-0|79"], 2);
  EXPECT_EQ(seen["kdtree_gpu_xid_last_timestamp_seconds|0|GPU-0|79"], 1000);
  EXPECT_FALSE(seen.has_family("kdtree_gpu_power_watts"));
  EXPECT_FALSE(seen.has_family("kdtree_gpu_failure_info"));
  EXPECT_FALSE(seen.has_family("kdtree_nvml_failure_info"));
}

TEST(GpuMetrics, ADownGpuKeepsItsNameAndAgeAndNoValue) {
  NvmlSnapshot nvml;
  nvml.visible = 1;
  nvml.gpus = {good_gpu(0)};
  nvml.gpus[0].condition = GpuCondition::hung;
  nvml.gpus[0].values.reset();
  Exposition out;
  add_gpu_metrics(out, nvml, nullptr);
  const Scrape seen(out);
  EXPECT_EQ(seen["kdtree_gpu_up|0|GPU-0"], 0);
  EXPECT_EQ(seen["kdtree_gpu_failure_info|0|hung|GPU-0"], 1);
  EXPECT_EQ(seen["kdtree_gpu_sample_age_seconds|0|GPU-0"], 0.5);
  EXPECT_TRUE(seen.has_family("kdtree_gpu_info"));
  for (const char* gone : {"kdtree_gpu_utilization_ratio", "kdtree_gpu_memory_used_bytes",
                           "kdtree_gpu_busy_seconds_total", "kdtree_gpus_expected"})
    EXPECT_FALSE(seen.has_family(gone)) << gone;
}

TEST(GpuMetrics, TheRestOfWhatAGpuTells) {
  NvmlSnapshot nvml;
  nvml.gpus = {good_gpu(0)};
  GpuSnapshot& gpu = nvml.gpus[0];
  gpu.spread.add(0.5);
  gpu.spread.add(1);
  gpu.sample_took = 3ms;
  gpu.values->utilization_max = 1;
  gpu.values->energy_joules = 12.5;
  gpu.values->sm_clock_hertz = 2e9;
  gpu.values->clock_events.emplace();
  (*gpu.values->clock_events)[2] = true;
  gpu.clock_event_time[2] = 7s;
  gpu.values->gpm.tensor_active = 0.01;
  gpu.slow.emplace();
  gpu.slow_age = 4s;
  gpu.slow->ecc_uncorrected = 3;
  gpu.slow->processes = {{4711, 100}, {4712, std::nullopt}};
  gpu.slow->pcie_receive_bytes_per_second = 5000;
  gpu.slow->pcie_took = 45ms;
  Exposition out;
  add_gpu_metrics(out, nvml, nullptr);
  const Scrape seen(out);
  EXPECT_EQ(seen["kdtree_gpu_utilization_max_ratio|0|GPU-0"], 1);
  EXPECT_EQ(seen["kdtree_gpu_utilization_distribution_ratio_count|0|GPU-0"], 2);
  EXPECT_EQ(seen["kdtree_gpu_utilization_distribution_ratio_sum|0|GPU-0"], 1.5);
  EXPECT_EQ(seen["kdtree_gpu_utilization_distribution_ratio_bucket|0|0.25|GPU-0"], 0);
  EXPECT_EQ(seen["kdtree_gpu_utilization_distribution_ratio_bucket|0|0.5|GPU-0"], 1);
  EXPECT_EQ(seen["kdtree_gpu_utilization_distribution_ratio_bucket|0|+Inf|GPU-0"], 2);
  EXPECT_EQ(seen["kdtree_gpu_energy_joules_total|0|GPU-0"], 12.5);
  EXPECT_EQ(seen["kdtree_gpu_clock_hertz|sm|0|GPU-0"], 2e9);
  EXPECT_EQ(seen["kdtree_gpu_clock_event|0|software_power_cap|GPU-0"], 1);
  EXPECT_EQ(seen["kdtree_gpu_clock_event|0|idle|GPU-0"], 0);
  EXPECT_EQ(seen["kdtree_gpu_clock_event_seconds_total|0|software_power_cap|GPU-0"], 7);
  EXPECT_EQ(seen["kdtree_gpu_tensor_active_ratio|0|GPU-0"], 0.01);
  EXPECT_EQ(seen["kdtree_gpu_ecc_errors_total|0|uncorrected|GPU-0"], 3);
  EXPECT_EQ(seen["kdtree_gpu_processes|0|GPU-0"], 2);
  EXPECT_EQ(seen["kdtree_gpu_process_memory_bytes|0|4711|GPU-0"], 100);
  EXPECT_FALSE(seen["kdtree_gpu_process_memory_bytes|0|4712|GPU-0"]);
  EXPECT_EQ(seen["kdtree_gpu_pcie_receive_bytes_per_second|0|GPU-0"], 5000);
  EXPECT_EQ(seen["kdtree_collector_duration_seconds|pcie"], 0.045);
  EXPECT_EQ(seen["kdtree_collector_age_seconds|pcie"], 4);
  EXPECT_EQ(seen["kdtree_collector_duration_seconds|gpus"], 0.003);
  EXPECT_FALSE(seen.has_family("kdtree_gpu_sm_active_ratio"));
  EXPECT_FALSE(seen.has_family("kdtree_gpu_power_limit_watts"));
}

TEST(GpuMetrics, GpmsPcieCountersAreTakenBeforeTheSlowOnes) {
  NvmlSnapshot nvml;
  nvml.gpus = {good_gpu(0)};
  nvml.gpus[0].values->gpm.pcie_receive_bytes_per_second = 7;
  nvml.gpus[0].slow.emplace();
  nvml.gpus[0].slow->pcie_receive_bytes_per_second = 5;
  Exposition out;
  add_gpu_metrics(out, nvml, nullptr);
  EXPECT_EQ(Scrape(out)["kdtree_gpu_pcie_receive_bytes_per_second|0|GPU-0"], 7);
  EXPECT_FALSE(Scrape(out).has_family("kdtree_gpu_pcie_transmit_bytes_per_second"));
}

TEST(GpuMetrics, WithoutNvmlNoGpuIsCounted) {
  NvmlSnapshot nvml;
  nvml.failure = NvmlError{NvmlFailure::driver_mismatch, "x"};
  Exposition out;
  add_gpu_metrics(out, nvml, nullptr);
  const Scrape seen(out);
  EXPECT_EQ(seen["kdtree_nvml_up"], 0);
  EXPECT_EQ(seen["kdtree_nvml_failure_info|driver_mismatch"], 1);
  EXPECT_FALSE(seen.has_family("kdtree_gpus_visible"));
}

RankStats rank_stats(int rank) {
  RankStats stats;
  stats.pid = 100 + rank;
  stats.tp_rank = rank;
  stats.tp_size = 2;
  stats.release_id = "r1";
  stats.engine_version = "0.5.17";
  stats.engine_fingerprint = "f1";
  stats.torch_version = "2.11.0";
  stats.patch_state = PatchState::active;
  stats.mode = Mode::validate;
  stats.updated = std::chrono::nanoseconds(static_cast<std::int64_t>(boottime_ns()));
  return stats;
}

HostView view_of(const std::vector<RankStats>& ranks) {
  HostView view;
  view.stats.emplace();
  for (const RankStats& stats : ranks) {
    StatsFile file;
    file.outcome = StatsOutcome::ok;
    file.stats = stats;
    view.stats->files.push_back(file);
  }
  view.config.emplace();
  view.config->engine.ranks = 2;
  view.control = Control{Mode::validate, 5, "r1"};
  view.current_release = "r1";
  view.made_for_engine = "f1";
  view.made_for_torch = "2.11.0";
  return view;
}

Scrape scrape_of(const HostView& view) {
  Exposition out;
  add_rank_metrics(out, view, {});
  add_host_metrics(out, view);
  return Scrape(out);
}

TEST(RankMetrics, ShowsCountersAsTheyAre) {
  RankStats stats = rank_stats(0);
  stats.calls_kernel = 7;
  stats.calls_engine = 8;
  stats.handed_back[KDTREE_BACK_MASK] = 3;
  stats.compares = 9;
  stats.mismatches = 1;
  stats.max_ulp = 2.5;
  stats.max_mean_ulp = 0.25;
  stats.sum_mean_ulp = 0.9;
  stats.longest_prefix = 4096;
  stats.batches = {{4, 9, 9}};
  stats.kv_pairs = 4;
  stats.kv_contiguous_pairs = 1;
  stats.graphs = true;
  stats.sort_state = SortState::not_possible;
  const Scrape seen = scrape_of(view_of({stats}));
  EXPECT_EQ(seen["kdtree_verify_calls_total|kernel|0"], 7);
  EXPECT_EQ(seen["kdtree_verify_calls_total|engine|0"], 8);
  EXPECT_EQ(seen["kdtree_verify_handed_back_total|0|mask"], 3);
  EXPECT_EQ(seen["kdtree_verify_compares_total|0"], 9);
  EXPECT_EQ(seen["kdtree_verify_batch_compares_total|4|0"], 9);
  EXPECT_EQ(seen["kdtree_verify_mismatches_total|0"], 1);
  EXPECT_EQ(seen["kdtree_verify_max_difference_ulps|0"], 2.5);
  EXPECT_EQ(seen["kdtree_verify_max_mean_difference_ulps|0"], 0.25);
  EXPECT_EQ(seen["kdtree_verify_mean_difference_ulps_sum_total|0"], 0.9);
  EXPECT_EQ(seen["kdtree_verify_longest_compared_prefix_tokens|0"], 4096);
  EXPECT_EQ(seen["kdtree_kv_contiguous_ratio|0"], 0.25);
  EXPECT_EQ(seen["kdtree_rank_graphs|0"], 1);
  EXPECT_EQ(seen["kdtree_rank_sorts_free_list|0"], 0);
  EXPECT_EQ(seen["kdtree_rank_mode|validate|0"], 1);
  EXPECT_EQ(seen["kdtree_rank_mode|on|0"], 0);
  EXPECT_EQ(seen["kdtree_rank_up|0"], 1);
  EXPECT_EQ(seen["kdtree_rank_up|1"], 0);
  EXPECT_EQ(seen["kdtree_stats_files|ok"], 1);
  EXPECT_EQ(seen["kdtree_stats_files|torn"], 0);
  EXPECT_FALSE(seen.has_family("kdtree_verify_max_abs_difference"));
}

TEST(RankMetrics, WhatNobodyComparedHasNoDifference) {
  const Scrape seen = scrape_of(view_of({rank_stats(0)}));
  EXPECT_EQ(seen["kdtree_verify_compares_total|0"], 0);
  for (const char* gone :
       {"kdtree_verify_max_difference_ulps", "kdtree_verify_max_mean_difference_ulps",
        "kdtree_verify_longest_compared_prefix_tokens", "kdtree_kv_contiguous_ratio",
        "kdtree_rank_graphs", "kdtree_rank_sorts_free_list", "kdtree_verify_handed_back_total"})
    EXPECT_FALSE(seen.has_family(gone)) << gone;
}

TEST(RankMetrics, ARankThatStandsAsideHasNoMode) {
  RankStats stats = rank_stats(0);
  stats.patch_state = PatchState::refused;
  const Scrape seen = scrape_of(view_of({stats}));
  EXPECT_EQ(seen["kdtree_rank_active|0"], 0);
  EXPECT_FALSE(seen.has_family("kdtree_rank_mode"));
}

TEST(RankMetrics, ProcessesThatAreNoRanksAreCountedAsFilesOnly) {
  RankStats launcher = rank_stats(0);
  launcher.tp_rank.reset();
  const Scrape seen = scrape_of(view_of({launcher}));
  EXPECT_EQ(seen["kdtree_stats_files|ok"], 1);
  EXPECT_EQ(seen["kdtree_rank_up|0"], 0);
  EXPECT_FALSE(seen.has_family("kdtree_rank_info"));
}

TEST(RankMetrics, AProcessThatRefusedBeforeItKnewItsRankIsSeen) {
  RankStats refused = rank_stats(0);
  refused.tp_rank.reset();
  refused.patch_state = PatchState::refused;
  const Scrape seen = scrape_of(view_of({refused, rank_stats(1)}));
  EXPECT_EQ(seen["kdtree_patch_processes|refused"], 1);
  EXPECT_EQ(seen["kdtree_patch_processes|active"], 1);
  EXPECT_EQ(seen["kdtree_patch_processes|passive"], 0);
}

TEST(RankMetrics, OfTwoProcessesWithOneRankTheYoungerPublicationIsShown) {
  RankStats old = rank_stats(0);
  old.updated -= 5s;
  old.calls_kernel = 1;
  RankStats young = rank_stats(0);
  young.calls_kernel = 2;
  EXPECT_EQ(scrape_of(view_of({young, old}))["kdtree_verify_calls_total|kernel|0"], 2);
  EXPECT_EQ(scrape_of(view_of({old, young}))["kdtree_verify_calls_total|kernel|0"], 2);
}

TEST(RankMetrics, ARankThatWasSeenStaysKnownAsDown) {
  Exposition out;
  add_rank_metrics(out, view_of({}), {5});
  EXPECT_EQ(Scrape(out)["kdtree_rank_up|5"], 0);
  EXPECT_FALSE(Scrape(out).has_family("kdtree_verify_calls_total"));
}

TEST(RankMetrics, AFolderThatCantBeReadShowsNothingButThat) {
  HostView view = view_of({rank_stats(0)});
  view.stats.reset();
  const Scrape seen = scrape_of(view);
  EXPECT_EQ(seen["kdtree_stats_up"], 0);
  for (const char* gone : {"kdtree_rank_up", "kdtree_stats_files", "kdtree_patch_processes",
                           "kdtree_verify_calls_total", "kdtree_drift"})
    EXPECT_FALSE(seen.has_family(gone)) << gone;
}

TEST(HostMetrics, NoDriftWhereAllAgrees) {
  const Scrape seen = scrape_of(view_of({rank_stats(0), rank_stats(1)}));
  EXPECT_EQ(seen["kdtree_drift|mode"], 0);
  EXPECT_EQ(seen["kdtree_drift|release"], 0);
  EXPECT_EQ(seen["kdtree_drift|engine"], 0);
  EXPECT_EQ(seen["kdtree_drift|ranks"], 0);
  EXPECT_EQ(seen["kdtree_mode|validate"], 1);
  EXPECT_EQ(seen["kdtree_mode|off"], 0);
  EXPECT_EQ(seen["kdtree_control_generation"], 5);
  EXPECT_EQ(seen["kdtree_release_info|r1"], 1);
}

TEST(HostMetrics, EachKindOfDrift) {
  RankStats other = rank_stats(1);
  other.mode = Mode::on;
  EXPECT_EQ(scrape_of(view_of({rank_stats(0), other}))["kdtree_drift|mode"], 1);
  other = rank_stats(1);
  other.release_id = "r0";
  EXPECT_EQ(scrape_of(view_of({rank_stats(0), other}))["kdtree_drift|release"], 1);
  EXPECT_EQ(scrape_of(view_of({rank_stats(0)}))["kdtree_drift|ranks"], 1);
  other = rank_stats(1);
  other.patch_state = PatchState::refused;
  EXPECT_EQ(scrape_of(view_of({rank_stats(0), other}))["kdtree_drift|ranks"], 1);
}

TEST(HostMetrics, AnEngineThatTheReleaseWasNotMadeForIsDrift) {
  RankStats other = rank_stats(1);
  other.patch_state = PatchState::refused;
  other.engine_fingerprint = "f2";
  EXPECT_EQ(scrape_of(view_of({rank_stats(0), other}))["kdtree_drift|engine"], 1);
  other = rank_stats(1);
  other.torch_version = "2.12.0";
  EXPECT_EQ(scrape_of(view_of({rank_stats(0), other}))["kdtree_drift|engine"], 1);
  other.torch_version = "";
  EXPECT_EQ(scrape_of(view_of({rank_stats(0), other}))["kdtree_drift|engine"], 0) << "not said yet";
  HostView view = view_of({rank_stats(0), other});
  view.made_for_engine = "";
  EXPECT_FALSE(scrape_of(view)["kdtree_drift|engine"]) << "no manifest";
  other.tp_rank.reset();
  other.engine_fingerprint = "f2";
  EXPECT_EQ(scrape_of(view_of({other}))["kdtree_drift|engine"], 1)
      << "refused before it had a rank";
}

TEST(HostMetrics, WithoutAControlFileTheModeIsTheOneTheRanksWereStartedIn) {
  RankStats first = rank_stats(0);
  RankStats second = rank_stats(1);
  first.start_mode = second.start_mode = Mode::on;
  HostView view = view_of({first, second});
  EXPECT_EQ(scrape_of(view)["kdtree_mode|validate"], 1) << "the control file wins";
  view.control.reset();
  const Scrape seen = scrape_of(view);
  EXPECT_EQ(seen["kdtree_mode|on"], 1);
  EXPECT_EQ(seen["kdtree_mode|validate"], 0);
  EXPECT_EQ(seen["kdtree_drift|mode"], 1) << "they are in validate";
  EXPECT_FALSE(seen.has_family("kdtree_control_generation"));
  second.start_mode = Mode::off;
  view = view_of({first, second});
  view.control.reset();
  EXPECT_FALSE(scrape_of(view).has_family("kdtree_mode")) << "they differ";
}

TEST(HostMetrics, TrialOnlyWhereItIsKnown) {
  HostView view = view_of({rank_stats(0)});
  EXPECT_FALSE(scrape_of(view).has_family("kdtree_trial"));
  view.trial = false;
  EXPECT_EQ(scrape_of(view)["kdtree_trial"], 0);
  view.trial = true;
  EXPECT_EQ(scrape_of(view)["kdtree_trial"], 1);
}

TEST(HostMetrics, UnknownIntentionIsNoDriftAndNoMode) {
  HostView view = view_of({rank_stats(0)});
  view.control.reset();
  view.current_release.clear();
  view.made_for_engine.clear();
  view.config.reset();
  const Scrape seen = scrape_of(view);
  for (const char* gone :
       {"kdtree_drift", "kdtree_mode", "kdtree_release_info", "kdtree_ranks_expected"})
    EXPECT_FALSE(seen.has_family(gone)) << gone;
}

}  // namespace
}  // namespace kdtree
