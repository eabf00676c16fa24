// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <span>
#include <string>
#include <string_view>

// The one list of what kdtree-agent exports: exporter, `kdtree-agent --list-metrics`, dashboards'
// tests and docs read it. A series exists only while its value is known: a failed read removes it
// and lowers kdtree_<collector>_up.
namespace kdtree {

enum class MetricType { gauge, counter };

enum class Metric {
  // GPUs, from NVML
  gpu_info,
  gpu_up,
  gpu_failure_info,
  gpu_sample_age,
  gpu_utilization,
  gpu_busy_seconds,
  gpu_observed_seconds,
  gpu_memory_used,
  gpu_memory_total,
  gpu_power,
  gpu_temperature,
  gpu_pcie_receive,
  gpu_pcie_transmit,
  gpu_xid_errors,
  gpu_xid_last_timestamp,
  gpus_visible,
  gpus_expected,
  nvml_up,
  nvml_failure_info,
  nvml_events_up,
  // the patch inside the engine's processes, from the stats files
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
  verify_abs_difference_sum,
  verify_longest_prefix,
  kv_contiguous,
  // expert routing, from the stats files
  moe_layout_info,
  moe_steps,
  moe_tokens,
  moe_rank_tokens,
  moe_layer_rank_tokens,
  moe_rank_idle_layer_steps,
  moe_layer_tokens,
  moe_layer_steps,
  moe_unique_experts,
  moe_balance,
  moe_layer_balance,
  moe_layer_expert_balance,
  // what the host is meant to run
  host_up,
  mode,
  control_generation,
  release_info,
  drift,
  // the agent itself
  agent_build_info,
  agent_cpu_seconds,
  agent_resident_memory,
  agent_start_time,
  count_,
};

struct MetricSpec {
  Metric id;
  std::string_view name;
  MetricType type;
  std::string_view unit;                     // "bytes", "ratio", "1" for plain numbers and flags
  std::span<const std::string_view> labels;  // names, in the order in which values are given
  std::string_view help;
  std::string_view absent;  // when no series exists
};

// In the order of enum Metric, which is the order of the exposition.
std::span<const MetricSpec> metric_catalog();
const MetricSpec& metric_spec(Metric id);
std::string_view metric_type_name(MetricType type);

// For --list-metrics: one line a metric; and {"metrics":
// [{"name","type","unit","labels","help","absent"}]}.
std::string catalog_as_text();
std::string catalog_as_json();

}  // namespace kdtree
