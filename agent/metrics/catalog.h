// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <span>
#include <string>
#include <string_view>

// The one list of what kdtree-agent exports: exporter, `kdtree-agent --list-metrics`,
// dashboards/METRICS.md and the dashboards' tests read it. A series exists only while its value is
// known: a failed read removes it and lowers kdtree_<collector>_up.
namespace kdtree {

enum class MetricType { gauge, counter, histogram };

enum class Metric {
  // GPUs, from NVML (catalog_gpu.cpp)
  gpu_info,
  gpu_up,
  gpu_failure_info,
  gpu_sample_age,
  gpu_sample_duration,
  gpu_utilization,
  gpu_utilization_max,
  gpu_utilization_distribution,
  gpu_busy_seconds,
  gpu_observed_seconds,
  gpu_sm_active,
  gpu_sm_occupancy,
  gpu_tensor_active,
  gpu_dram_active,
  gpu_memory_used,
  gpu_memory_total,
  gpu_power,
  gpu_power_limit,
  gpu_energy,
  gpu_temperature,
  gpu_clock,
  gpu_clock_max,
  gpu_clock_event,
  gpu_clock_event_seconds,
  gpu_pcie_receive,
  gpu_pcie_transmit,
  gpu_ecc_errors,
  gpu_processes,
  gpu_process_memory,
  gpu_xid_errors,
  gpu_xid_last_timestamp,
  gpus_visible,
  gpus_expected,
  nvml_up,
  nvml_failure_info,
  nvml_events_up,
  // the patch inside the engine's processes, from the stats files (catalog_ranks.cpp)
  stats_up,
  stats_files,
  patch_processes,
  ranks_expected,
  rank_up,
  rank_active,
  rank_info,
  rank_mode,
  rank_control_generation,
  rank_publication_age,
  rank_graphs,
  rank_sorts,
  verify_calls,
  verify_handed_back,
  verify_compares,
  verify_batch_compares,
  verify_mismatches,
  verify_max_abs_difference,
  verify_max_difference_ulps,
  verify_mean_difference_sum,
  verify_max_mean_difference_ulps,
  verify_longest_prefix,
  kv_contiguous,
  // expert routing, from the stats files (catalog_moe.cpp)
  moe_layout_info,
  moe_steps,
  moe_tokens,
  moe_rank_tokens,
  moe_layer_rank_tokens,
  moe_what_if_layer_rank_tokens,
  moe_rank_idle_layer_steps,
  moe_expected_idle_layer_steps,
  moe_rank_straggler_layer_steps,
  moe_peak_tokens,
  moe_expected_peak_tokens,
  moe_layer_tokens,
  moe_layer_steps,
  moe_unique_experts,
  moe_expected_unique_experts,
  moe_peak_load,
  moe_expected_peak_load,
  moe_layer_peak_load,
  moe_layer_expected_peak_load,
  moe_what_if_peak_load,
  moe_what_if_expected_peak_load,
  moe_what_if_peak_tokens,
  moe_what_if_expected_peak_tokens,
  moe_what_if_rank_straggler_layer_steps,
  moe_what_if_rank_idle_layer_steps,
  moe_what_if_expected_idle_layer_steps,
  moe_expert_tokens,
  // what the host is meant to run, and the agent itself (catalog_host.cpp)
  host_up,
  mode,
  control_generation,
  release_info,
  trial,
  drift,
  agent_build_info,
  agent_cpu_seconds,
  agent_resident_memory,
  agent_start_time,
  collector_age,
  collector_duration,
  count_,
};

struct MetricSpec {
  Metric id;
  std::string_view name;
  MetricType type;
  std::string_view unit;                     // "bytes", "ratio", "1" for plain numbers and flags
  std::span<const std::string_view> labels;  // names, in the order in which values are given
  std::string_view help;
  std::string_view absent;   // when no series exists
  std::string_view cost;     // what it takes to have it
  std::string_view example;  // a PromQL query that says something
};

// In the order of enum Metric, which is the order of the exposition.
std::span<const MetricSpec> metric_catalog();
const MetricSpec& metric_spec(Metric id);
std::string_view metric_type_name(MetricType type);

// For --list-metrics: one line a metric; {"metrics": [{"name", "type", "unit", "labels", "help",
// "absent", "cost", "example"}]}; and the page dashboards/METRICS.md.
std::string catalog_as_text();
std::string catalog_as_json();
std::string catalog_as_markdown();

}  // namespace kdtree
