// SPDX-License-Identifier: Apache-2.0
#include "agent/metrics/catalog_parts.h"

namespace kdtree {
namespace {

using enum MetricType;

constexpr LabelNames<1> kState{"state"};
constexpr LabelNames<1> kPatchState{"patch_state"};
constexpr LabelNames<1> kRank{"rank"};
constexpr LabelNames<8> kInfo{"rank",          "pid",         "release", "engine_version",
                              "torch_version", "patch_state", "device",  "uuid"};
constexpr LabelNames<2> kMode{"rank", "mode"};
constexpr LabelNames<2> kBy{"rank", "by"};
constexpr LabelNames<2> kReason{"rank", "reason"};
constexpr LabelNames<2> kBatch{"rank", "batch"};

constexpr std::string_view kNoStats = "kdtree_stats_up is 0";
constexpr std::string_view kNoRank =
    "the rank's process is gone or silent, or its stats file is not readable";
constexpr std::string_view kNothingCompared = "nothing compared yet";

constexpr MetricSpec kCatalog[] = {
    {Metric::stats_up,
     "kdtree_stats_up",
     gauge,
     "1",
     {},
     "1 if the folder of the stats files could be listed just now (one that isn't there holds "
     "none).",
     kNever,
     kNoCost,
     "kdtree_stats_up == 0"},
    {Metric::stats_files, "kdtree_stats_files", gauge, "1", kState,
     "Stats files by what reading them gave: ok, torn, damaged, truncated, foreign, newer, dead, "
     "stale, not_regular, too_large, unreadable.",
     kNoStats, kNoCost, "kdtree_stats_files{state!=\"ok\"} > 0"},
    {Metric::patch_processes, "kdtree_patch_processes", gauge, "1", kPatchState,
     "Living processes with the patch in them, ranks or not, by what it does there: active, "
     "passive, refused. One that refuses at its start never learns its rank, and shows here alone.",
     kNoStats, kNoCost, "kdtree_patch_processes{patch_state=\"refused\"} > 0"},
    {Metric::ranks_expected,
     "kdtree_ranks_expected",
     gauge,
     "1",
     {},
     "Ranks that the configuration names.",
     "no configuration",
     kNoCost,
     "sum by (job, instance) (kdtree_rank_up) < kdtree_ranks_expected"},
    {Metric::rank_up, "kdtree_rank_up", gauge, "1", kRank,
     "1 if a living process publishes for this rank, 0 if not; for each rank expected by the "
     "configuration or seen.",
     "kdtree_stats_up is 0, or no configuration and the rank was never seen", kNoCost,
     "kdtree_rank_up == 0"},
    {Metric::rank_active, "kdtree_rank_active", gauge, "1", kRank,
     "1 if the patch is armed in this rank, 0 if it stands aside (see patch_state in "
     "kdtree_rank_info).",
     kNoRank, kStatsCost, "kdtree_rank_active == 0"},
    {Metric::rank_info, "kdtree_rank_info", gauge, "1", kInfo,
     "What a rank runs, and the uuid of its GPU (empty on the CPU); patch_state is active, passive "
     "or refused; the value is 1.",
     kNoRank, kStatsCost,
     "kdtree_gpu_utilization_ratio * on (job, instance, uuid) group_right () kdtree_rank_info"},
    {Metric::rank_mode, "kdtree_rank_mode", gauge, "1", kMode,
     "1 for the mode in force in this rank (off, validate, on), 0 for the others.",
     "the patch is not active in this rank, or its process is gone or silent", kStatsCost,
     "kdtree_rank_mode == 1"},
    {Metric::rank_control_generation, "kdtree_rank_control_generation", gauge, "1", kRank,
     "Generation of the control file that this rank obeyed last; 0 = none, the environment's mode "
     "holds.",
     kNoRank, kStatsCost,
     "kdtree_rank_control_generation != on (job, instance) group_left () "
     "kdtree_control_generation"},
    {Metric::rank_publication_age, "kdtree_rank_publication_age_seconds", gauge, "seconds", kRank,
     "Time since this rank last published; above 10 s its values are withdrawn.", kNoRank,
     kStatsCost, "max by (job, instance) (kdtree_rank_publication_age_seconds)"},
    {Metric::rank_graphs, "kdtree_rank_graphs", gauge, "1", kRank,
     "1 if verify runs in captured CUDA graphs in this rank, 0 if eagerly.", "not known yet",
     kStatsCost, "kdtree_rank_graphs"},
    {Metric::rank_sorts, "kdtree_rank_sorts_free_list", gauge, "1", kRank,
     "1 if the rank was seen to hand out KV slots sorted, 0 if off or not possible.",
     "not known yet", kStatsCost, "kdtree_rank_sorts_free_list"},
    {Metric::verify_calls, "kdtree_verify_calls_total", counter, "1", kBy,
     "Verify-attention calls (one a layer and step) that kdtree could take, by who answered: "
     "kernel, engine.",
     kNoRank, kStatsCost, "sum by (job, instance, by) (rate(kdtree_verify_calls_total[5m]))"},
    {Metric::verify_handed_back, "kdtree_verify_handed_back_total", counter, "1", kReason,
     "Verify calls that kdtree could not take and the engine's kernel answered, by reason.",
     "no call was handed back for this reason since the process began", kStatsCost,
     "sum by (job, instance, reason) (rate(kdtree_verify_handed_back_total[5m]))"},
    {Metric::verify_compares, "kdtree_verify_compares_total", counter, "1", kRank,
     "Verify calls answered by both kernels and compared.", kNoRank, kStatsCost,
     "min by (job, instance) (kdtree_verify_compares_total)"},
    {Metric::verify_batch_compares, "kdtree_verify_batch_compares_total", counter, "1", kBatch,
     "The same, by requests in the call; at most 48 sizes, \"other\" for all that have none of "
     "their "
     "own.",
     "nothing compared at this size", kStatsCost,
     "min by (job, instance, batch) (kdtree_verify_batch_compares_total)"},
    {Metric::verify_mismatches, "kdtree_verify_mismatches_total", counter, "1", kRank,
     "Compares over tolerance.", kNoRank, kStatsCost, "kdtree_verify_mismatches_total > 0"},
    {Metric::verify_max_abs_difference, "kdtree_verify_max_abs_difference", gauge, "1", kRank,
     "Largest absolute difference between the two kernels' outputs since the process began.",
     kNothingCompared, kStatsCost, "max by (job, instance) (kdtree_verify_max_abs_difference)"},
    {Metric::verify_max_difference_ulps, "kdtree_verify_max_difference_ulps", gauge, "1", kRank,
     "The largest difference in units in the last place of the output type at the output's "
     "magnitude.",
     kNothingCompared, kStatsCost, "max by (job, instance) (kdtree_verify_max_difference_ulps)"},
    {Metric::verify_mean_difference_sum, "kdtree_verify_mean_difference_ulps_sum_total", counter,
     "1", kRank,
     "Sum over compares of each one's mean difference in the same units, of the request with the "
     "largest; divide its rate by that of compares.",
     kNoRank, kStatsCost,
     "rate(kdtree_verify_mean_difference_ulps_sum_total[5m]) / "
     "rate(kdtree_verify_compares_total[5m])"},
    {Metric::verify_max_mean_difference_ulps, "kdtree_verify_max_mean_difference_ulps", gauge, "1",
     kRank, "The largest mean difference of one request in one compare, in the same units.",
     kNothingCompared, kStatsCost,
     "max by (job, instance) (kdtree_verify_max_mean_difference_ulps)"},
    {Metric::verify_longest_prefix, "kdtree_verify_longest_compared_prefix_tokens", gauge, "tokens",
     kRank, "Longest prefix among the compared calls.", kNothingCompared, kStatsCost,
     "min by (job, instance) (kdtree_verify_longest_compared_prefix_tokens)"},
    {Metric::kv_contiguous, "kdtree_kv_contiguous_ratio", gauge, "ratio", kRank,
     "Part of neighbouring KV slots, of those looked at since the process began, that follow each "
     "other in memory.",
     "none looked at yet", kStatsCost, "kdtree_kv_contiguous_ratio"},
};

}  // namespace

std::span<const MetricSpec> rank_metrics() { return kCatalog; }

}  // namespace kdtree
