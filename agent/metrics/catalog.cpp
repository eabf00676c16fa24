// SPDX-License-Identifier: Apache-2.0
#include "agent/metrics/catalog.h"

#include <array>
#include <nlohmann/json.hpp>

namespace kdtree {
namespace {

using enum MetricType;
using Labels = std::span<const std::string_view>;

template <std::size_t n>
using Names = std::array<std::string_view, n>;

constexpr Names<1> kGpu{"gpu"};
constexpr Names<5> kGpuInfo{"gpu", "uuid", "name", "driver", "pci_bus_id"};
constexpr Names<2> kGpuReason{"gpu", "reason"};
constexpr Names<2> kGpuXid{"gpu", "xid"};
constexpr Names<1> kReason{"reason"};
constexpr Names<1> kState{"state"};
constexpr Names<1> kPatchState{"patch_state"};
constexpr Names<1> kRank{"rank"};
constexpr Names<7> kRankInfo{"rank",          "pid",         "release", "engine_version",
                             "torch_version", "patch_state", "device"};
constexpr Names<2> kRankMode{"rank", "mode"};
constexpr Names<2> kRankBy{"rank", "by"};
constexpr Names<2> kRankReason{"rank", "reason"};
constexpr Names<2> kRankBatch{"rank", "batch"};
constexpr Names<4> kLayout{"ep_size", "tp_size", "experts", "top_k"};
constexpr Names<1> kMoeRank{"moe_rank"};
constexpr Names<2> kLayerMoeRank{"layer", "moe_rank"};
constexpr Names<1> kLayer{"layer"};
constexpr Names<1> kMode{"mode"};
constexpr Names<1> kRelease{"release"};
constexpr Names<1> kKind{"kind"};
constexpr Names<1> kVersion{"version"};

constexpr std::string_view kAlways = "never";
constexpr std::string_view kGpuDown =
    "the GPU is lost, hangs or answers with an error; it can't tell; the last good sample is older "
    "than 10 s";
constexpr std::string_view kNoRank =
    "the rank's process is gone or silent, or its stats file is not readable";
constexpr std::string_view kNoMoe = "no living rank observes expert routing";
constexpr std::string_view kNoMoeWindow =
    "no expert was chosen in the last 30 s, or no living rank observes routing";

constexpr MetricSpec kCatalog[] = {
    {Metric::gpu_info, "kdtree_gpu_info", gauge, "1", kGpuInfo,
     "Which GPU an index is; the value is 1. Join on gpu.", "NVML never named this GPU"},
    {Metric::gpu_up, "kdtree_gpu_up", gauge, "1", kGpu,
     "1 while the GPU answers NVML in time, 0 once it is lost, hangs or fails; for each GPU seen "
     "since the agent began.",
     "no GPU was seen yet"},
    {Metric::gpu_failure_info, "kdtree_gpu_failure_info", gauge, "1", kGpuReason,
     "Why kdtree_gpu_up is 0: lost, hung, no_permission, error; the value is 1.", "the GPU is up"},
    {Metric::gpu_sample_age, "kdtree_gpu_sample_age_seconds", gauge, "seconds", kGpu,
     "Time since the GPU last answered all that is asked each second.", "it never answered"},
    {Metric::gpu_utilization, "kdtree_gpu_utilization_ratio", gauge, "ratio", kGpu,
     "Part of NVML's last sampling period (1/6 to 1 s) in which a kernel ran. For averages use the "
     "busy and observed "
     "seconds.",
     kGpuDown},
    {Metric::gpu_busy_seconds, "kdtree_gpu_busy_seconds_total", counter, "seconds", kGpu,
     "Utilisation summed over the time that the agent watched, one sample a second: "
     "rate(kdtree_gpu_busy_seconds_total) / rate(kdtree_gpu_observed_seconds_total) is the mean "
     "utilisation of any span.",
     kGpuDown},
    {Metric::gpu_observed_seconds, "kdtree_gpu_observed_seconds_total", counter, "seconds", kGpu,
     "Time for which utilisation is known; gaps in the sampling are left out.", kGpuDown},
    {Metric::gpu_memory_used, "kdtree_gpu_memory_used_bytes", gauge, "bytes", kGpu,
     "Device memory in use.", kGpuDown},
    {Metric::gpu_memory_total, "kdtree_gpu_memory_total_bytes", gauge, "bytes", kGpu,
     "Device memory there is.", kGpuDown},
    {Metric::gpu_power, "kdtree_gpu_power_watts", gauge, "watts", kGpu, "Power drawn by the board.",
     kGpuDown},
    {Metric::gpu_temperature, "kdtree_gpu_temperature_celsius", gauge, "celsius", kGpu,
     "Temperature of the GPU core.", kGpuDown},
    {Metric::gpu_pcie_receive, "kdtree_gpu_pcie_receive_bytes_per_second", gauge,
     "bytes_per_second", kGpu,
     "PCIe traffic into the GPU over NVML's last 20 ms (its KB/s times 1000).", kGpuDown},
    {Metric::gpu_pcie_transmit, "kdtree_gpu_pcie_transmit_bytes_per_second", gauge,
     "bytes_per_second", kGpu,
     "PCIe traffic out of the GPU over NVML's last 20 ms (its KB/s times 1000).", kGpuDown},
    {Metric::gpu_xid_errors, "kdtree_gpu_xid_errors_total", counter, "1", kGpuXid,
     "XID errors reported since the agent began; each event counts, the same XID again too.",
     "no such XID since the agent began"},
    {Metric::gpu_xid_last_timestamp, "kdtree_gpu_xid_last_timestamp_seconds", gauge, "seconds",
     kGpuXid,
     "Unix time at which the agent learned of the last event of this XID: for alerts, because "
     "increase() misses the "
     "first one.",
     "no such XID since the agent began"},
    {Metric::gpus_visible,
     "kdtree_gpus_visible",
     gauge,
     "1",
     {},
     "GPUs that NVML lists.",
     "NVML is not usable (kdtree_nvml_up is 0)"},
    {Metric::gpus_expected,
     "kdtree_gpus_expected",
     gauge,
     "1",
     {},
     "GPUs that the configuration asks for: one a rank, where kernel.device is cuda.",
     "no configuration, or kernel.device is cpu"},
    {Metric::nvml_up,
     "kdtree_nvml_up",
     gauge,
     "1",
     {},
     "1 while NVML is loaded, answers and lists at least one GPU.",
     kAlways},
    {Metric::nvml_failure_info, "kdtree_nvml_failure_info", gauge, "1", kReason,
     "Why kdtree_nvml_up is 0: starting, library_missing, library_unfit, driver_not_loaded, "
     "driver_mismatch, "
     "no_permission, no_gpu, hung, error; the value is 1.",
     "kdtree_nvml_up is 1"},
    {Metric::nvml_events_up,
     "kdtree_nvml_events_up",
     gauge,
     "1",
     {},
     "1 while the agent waits for XID events of every GPU that NVML lists; at 0 an XID may go "
     "unseen.",
     kAlways},

    {Metric::stats_up,
     "kdtree_stats_up",
     gauge,
     "1",
     {},
     "1 if the folder of the stats files could be listed just now (one that isn't there holds "
     "none).",
     kAlways},
    {Metric::stats_files, "kdtree_stats_files", gauge, "1", kState,
     "Stats files by what reading them gave: ok, torn, damaged, truncated, foreign, newer, dead, "
     "stale, not_regular, "
     "too_large, unreadable.",
     "kdtree_stats_up is 0"},
    {Metric::patch_processes, "kdtree_patch_processes", gauge, "1", kPatchState,
     "Living processes with the patch in them, ranks or not, by what it does there: active, "
     "passive, "
     "refused. One that refuses at its start never learns its rank, and shows here alone.",
     "kdtree_stats_up is 0"},
    {Metric::ranks_expected,
     "kdtree_ranks_expected",
     gauge,
     "1",
     {},
     "Ranks that the configuration names.",
     "no configuration"},
    {Metric::rank_up, "kdtree_rank_up", gauge, "1", kRank,
     "1 if a living process publishes for this rank, 0 if not; for each rank expected by the "
     "configuration or seen.",
     "kdtree_stats_up is 0, or no configuration and the rank was never seen"},
    {Metric::rank_active, "kdtree_rank_active", gauge, "1", kRank,
     "1 if the patch is armed in this rank, 0 if it stands aside (see patch_state in "
     "kdtree_rank_info).",
     kNoRank},
    {Metric::rank_info, "kdtree_rank_info", gauge, "1", kRankInfo,
     "What a rank runs; patch_state is active, passive or refused; the value is 1. Join on rank.",
     kNoRank},
    {Metric::rank_mode, "kdtree_rank_mode", gauge, "1", kRankMode,
     "1 for the mode in force in this rank (off, validate, on), 0 for the others.",
     "the patch is not active in this rank, or its process is gone or silent"},
    {Metric::rank_control_generation, "kdtree_rank_control_generation", gauge, "1", kRank,
     "Generation of the control file that this rank obeyed last; 0 = none, the environment's mode "
     "holds.",
     kNoRank},
    {Metric::rank_publication_age, "kdtree_rank_publication_age_seconds", gauge, "seconds", kRank,
     "Time since this rank last published; above 10 s its values are withdrawn.", kNoRank},
    {Metric::rank_graphs, "kdtree_rank_graphs", gauge, "1", kRank,
     "1 if verify runs in captured CUDA graphs in this rank, 0 if eagerly.", "not known yet"},
    {Metric::rank_sorts, "kdtree_rank_sorts_free_list", gauge, "1", kRank,
     "1 if the rank was seen to hand out KV slots sorted, 0 if off or not possible.",
     "not known yet"},
    {Metric::verify_calls, "kdtree_verify_calls_total", counter, "1", kRankBy,
     "Verify-attention calls (one a layer and step) that kdtree could take, by who answered: "
     "kernel, engine.",
     kNoRank},
    {Metric::verify_handed_back, "kdtree_verify_handed_back_total", counter, "1", kRankReason,
     "Verify calls that kdtree could not take and the engine's kernel answered, by reason.",
     "no call was handed back for this reason since the process began"},
    {Metric::verify_compares, "kdtree_verify_compares_total", counter, "1", kRank,
     "Verify calls answered by both kernels and compared.", kNoRank},
    {Metric::verify_batch_compares, "kdtree_verify_batch_compares_total", counter, "1", kRankBatch,
     "The same, by requests in the call; at most 48 sizes.", "nothing compared at this size"},
    {Metric::verify_mismatches, "kdtree_verify_mismatches_total", counter, "1", kRank,
     "Compares over tolerance.", kNoRank},
    {Metric::verify_max_abs_difference, "kdtree_verify_max_abs_difference", gauge, "1", kRank,
     "Largest absolute difference between the two kernels' outputs since the process began.",
     "nothing compared yet"},
    {Metric::verify_max_difference_ulps, "kdtree_verify_max_difference_ulps", gauge, "1", kRank,
     "The largest difference in units in the last place of the output type at the output's "
     "magnitude.",
     "nothing compared yet"},
    {Metric::verify_abs_difference_sum, "kdtree_verify_mean_abs_difference_sum_total", counter, "1",
     kRank,
     "Sum over compares of each one's mean absolute difference; divide its rate by that of "
     "compares.",
     kNoRank},
    {Metric::verify_longest_prefix, "kdtree_verify_longest_compared_prefix_tokens", gauge, "tokens",
     kRank, "Longest prefix among the compared calls.", "nothing compared yet"},
    {Metric::kv_contiguous, "kdtree_kv_contiguous_ratio", gauge, "ratio", kRank,
     "Part of neighbouring KV slots, of those looked at since the process began, that follow each "
     "other in memory.",
     "none looked at yet"},

    {Metric::moe_layout_info, "kdtree_moe_layout_info", gauge, "1", kLayout,
     "How experts are laid out, from the configuration (moe.ep_size) or else from the engine; the "
     "value is 1. ep_size 1: "
     "every rank holds a slice of each expert, so rank load is even by construction.",
     kNoMoe},
    {Metric::moe_steps,
     "kdtree_moe_steps_total",
     counter,
     "1",
     {},
     "Forward steps whose routing was observed.",
     kNoMoe},
    {Metric::moe_tokens,
     "kdtree_moe_tokens_total",
     counter,
     "1",
     {},
     "Routed tokens, each counted once and not per layer; padding left out.",
     kNoMoe},
    {Metric::moe_rank_tokens, "kdtree_moe_rank_tokens_total", counter, "1", kMoeRank,
     "Assignments of tokens to experts that this rank holds, whole or as a slice, summed over "
     "layers. At ep_size 1 every "
     "rank holds a slice of each expert: all ranks show the same number, even by construction and "
     "not by luck.",
     kNoMoe},
    {Metric::moe_layer_rank_tokens, "kdtree_moe_layer_rank_tokens_total", counter, "1",
     kLayerMoeRank, "The same by layer (layers x ranks series).",
     "ep_size is 1 (it would be even by construction), an expert's rank is not known, or no living "
     "rank observes routing"},
    {Metric::moe_rank_idle_layer_steps, "kdtree_moe_rank_idle_layer_steps_total", counter, "1",
     kMoeRank,
     "Pairs of layer and step in which no token went to this expert rank; divide by the sum over "
     "layers of "
     "kdtree_moe_layer_steps_total. At batch 1 many are idle even with perfect routing.",
     "ep_size is 1, or the engine's processes don't count it"},
    {Metric::moe_layer_tokens, "kdtree_moe_layer_tokens_total", counter, "1", kLayer,
     "Assignments of tokens to experts of this layer.", kNoMoe},
    {Metric::moe_layer_steps, "kdtree_moe_layer_steps_total", counter, "1", kLayer,
     "Steps seen by this layer.", kNoMoe},
    {Metric::moe_unique_experts, "kdtree_moe_unique_experts_total", counter, "1", kLayer,
     "Distinct experts that got a token, summed over steps; its rate over that of "
     "kdtree_moe_layer_steps_total is the "
     "number of experts whose weights a step reads.",
     kNoMoe},
    {Metric::moe_balance,
     "kdtree_moe_balance_ratio",
     gauge,
     "ratio",
     {},
     "Sum over layers of the mean load of a rank over the sum of the highest load, last 30 s: 1 is "
     "even, 1/ep_size is all "
     "on one rank. Always 1 at ep_size 1.",
     kNoMoeWindow},
    {Metric::moe_layer_balance, "kdtree_moe_layer_balance_ratio", gauge, "ratio", kLayer,
     "Mean over highest rank load in this layer, last 30 s.",
     "ep_size is 1, or nothing was routed in the last 30 s"},
    {Metric::moe_layer_expert_balance, "kdtree_moe_layer_expert_balance_ratio", gauge, "ratio",
     kLayer,
     "Mean over highest load of an expert in this layer, last 30 s; says something at ep_size 1 "
     "too. Low at small batches "
     "even with perfect routing.",
     kNoMoeWindow},

    {Metric::host_up,
     "kdtree_host_up",
     gauge,
     "1",
     {},
     "1 if configuration, control file and current release could be read, or are plainly not "
     "there.",
     kAlways},
    {Metric::mode, "kdtree_mode", gauge, "1", kMode,
     "1 for the mode that the host is meant to be in (off, validate, on; from the control file), 0 "
     "for the others.",
     "there is no control file, or it can't be read"},
    {Metric::control_generation,
     "kdtree_control_generation",
     gauge,
     "1",
     {},
     "Generation of the control file; ranks echo it in kdtree_rank_control_generation.",
     "there is no control file, or it can't be read"},
    {Metric::release_info, "kdtree_release_info", gauge, "1", kRelease,
     "The release that /opt/kdtree/current names; the value is 1.", "no release is current"},
    {Metric::drift, "kdtree_drift", gauge, "1", kKind,
     "1 if what runs is not what is meant: kind mode (a rank is armed in another mode than the "
     "control file's), release "
     "(a rank runs another release than the current one), ranks (fewer or more armed ranks than "
     "the configuration "
     "names).",
     "one of the two sides is unknown, or no rank lives"},

    {Metric::agent_build_info, "kdtree_agent_build_info", gauge, "1", kVersion,
     "The agent's version; the value is 1.", kAlways},
    {Metric::agent_cpu_seconds,
     "kdtree_agent_cpu_seconds_total",
     counter,
     "seconds",
     {},
     "CPU time that the agent has used.",
     kAlways},
    {Metric::agent_resident_memory,
     "kdtree_agent_resident_memory_bytes",
     gauge,
     "bytes",
     {},
     "The agent's memory.",
     "/proc/self/statm can't be read"},
    {Metric::agent_start_time,
     "kdtree_agent_start_time_seconds",
     gauge,
     "seconds",
     {},
     "Unix time at which the agent began.",
     kAlways},
};

constexpr bool in_enum_order() {
  std::size_t at = 0;
  for (const MetricSpec& spec : kCatalog)
    if (spec.id != static_cast<Metric>(at++)) return false;
  return at == static_cast<std::size_t>(Metric::count_);
}
static_assert(in_enum_order(), "kCatalog must list every Metric, in order");

}  // namespace

std::span<const MetricSpec> metric_catalog() { return kCatalog; }

const MetricSpec& metric_spec(Metric id) { return kCatalog[static_cast<std::size_t>(id)]; }

std::string_view metric_type_name(MetricType type) { return type == counter ? "counter" : "gauge"; }

std::string catalog_as_text() {
  std::string text;
  for (const MetricSpec& spec : kCatalog) {
    text += spec.name;
    if (!spec.labels.empty()) {
      char separator = '{';
      for (std::string_view label : spec.labels) (text += separator) += label, separator = ',';
      text += '}';
    }
    ((text += "  ") += metric_type_name(spec.type)) += ", ";
    ((text += spec.unit) += "\n    ") += spec.help;
    ((text += "\n    absent when: ") += spec.absent) += '\n';
  }
  return text;
}

std::string catalog_as_json() {
  nlohmann::ordered_json metrics = nlohmann::ordered_json::array();
  for (const MetricSpec& spec : kCatalog) {
    nlohmann::ordered_json labels = nlohmann::ordered_json::array();
    for (std::string_view label : spec.labels) labels.push_back(label);
    metrics.push_back({{"name", spec.name},
                       {"type", metric_type_name(spec.type)},
                       {"unit", spec.unit},
                       {"labels", labels},
                       {"help", spec.help},
                       {"absent", spec.absent}});
  }
  return nlohmann::ordered_json{{"metrics", metrics}}.dump(2) + "\n";
}

}  // namespace kdtree
