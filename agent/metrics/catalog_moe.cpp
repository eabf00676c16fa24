// SPDX-License-Identifier: Apache-2.0
#include "agent/metrics/catalog_parts.h"

namespace kdtree {
namespace {

using enum MetricType;

constexpr LabelNames<4> kLayout{"ep_size", "tp_size", "experts", "top_k"};
constexpr LabelNames<1> kMoeRank{"moe_rank"};
constexpr LabelNames<2> kLayerMoeRank{"layer", "moe_rank"};
constexpr LabelNames<3> kWhatIf{"ep_size", "layer", "moe_rank"};
constexpr LabelNames<1> kEpSize{"ep_size"};
constexpr LabelNames<2> kWhatIfLayer{"ep_size", "layer"};
constexpr LabelNames<2> kWhatIfRank{"ep_size", "moe_rank"};
constexpr LabelNames<1> kLayer{"layer"};
constexpr LabelNames<2> kExpert{"layer", "expert"};

constexpr std::string_view kNoMoe = "no living rank observes expert routing";
constexpr std::string_view kNoWindow =
    "no expert was chosen in the last 30 s, or no living rank observes routing";
constexpr std::string_view kNotEp =
    "ep_size is 1 (it would be even by construction), an expert's rank is not known, or no living "
    "rank observes routing";
constexpr std::string_view kNoSteps = "ep_size is 1, or the engine's processes don't count it";
constexpr std::string_view kNoWhatIfSteps =
    "ep_size is not 1, or the engine's processes don't count it (the experts don't divide by TP)";
constexpr std::string_view kSums = "sums over the expert table, once a second";

constexpr MetricSpec kCatalog[] = {
    {Metric::moe_layout_info, "kdtree_moe_layout_info", gauge, "1", kLayout,
     "How experts are laid out, from the configuration (moe.ep_size) or else from the engine; the "
     "value is 1. ep_size 1: every rank holds a slice of each expert, so rank load is even by "
     "construction, and the what_if metrics say how it would be otherwise.",
     kNoMoe, kNoCost, "kdtree_moe_layout_info"},
    {Metric::moe_steps,
     "kdtree_moe_steps_total",
     counter,
     "1",
     {},
     "Forward steps whose routing was observed.",
     kNoMoe,
     kStatsCost,
     "rate(kdtree_moe_steps_total[5m])"},
    {Metric::moe_tokens,
     "kdtree_moe_tokens_total",
     counter,
     "1",
     {},
     "Routed tokens, each counted once and not per layer; padding left out.",
     kNoMoe,
     kStatsCost,
     "rate(kdtree_moe_tokens_total[5m]) / rate(kdtree_moe_steps_total[5m])"},
    {Metric::moe_rank_tokens, "kdtree_moe_rank_tokens_total", counter, "1", kMoeRank,
     "Assignments of tokens to experts that this rank holds, whole or as a slice, summed over "
     "layers. At ep_size 1 every rank holds a slice of each expert: all ranks show the same "
     "number, "
     "even by construction and not by luck.",
     kNoMoe, kSums,
     "rate(kdtree_moe_rank_tokens_total[5m]) / on (job, instance) group_left () avg by (job, "
     "instance) (rate(kdtree_moe_rank_tokens_total[5m]))"},
    {Metric::moe_layer_rank_tokens, "kdtree_moe_layer_rank_tokens_total", counter, "1",
     kLayerMoeRank,
     "The same by layer. Where layers x ranks are more than 512, neighbouring layers share a "
     "series: "
     "layer is then first-last.",
     kNotEp, "layers x ranks series, at most 512",
     "rate(kdtree_moe_layer_rank_tokens_total[5m]) / on (job, instance, layer) group_left () avg "
     "by "
     "(job, instance, layer) (rate(kdtree_moe_layer_rank_tokens_total[5m]))"},
    {Metric::moe_what_if_layer_rank_tokens, "kdtree_moe_what_if_layer_rank_tokens_total", counter,
     "1", kWhatIf,
     "At ep_size 1: the assignments that each rank would have got with ep_size = tp_size and "
     "experts "
     "in order (expert / (experts / ep_size)).",
     "ep_size is not 1, or no living rank observes routing", "layers x ranks series, at most 512",
     "sum by (job, instance, moe_rank) (rate(kdtree_moe_what_if_layer_rank_tokens_total[5m]))"},
    {Metric::moe_rank_idle_layer_steps, "kdtree_moe_rank_idle_layer_steps_total", counter, "1",
     kMoeRank,
     "Pairs of layer and step in which no token went to this expert rank. At batch 1 many are idle "
     "even with perfect routing: compare with kdtree_moe_expected_idle_layer_steps_total.",
     kNoSteps, kStatsCost,
     "rate(kdtree_moe_rank_idle_layer_steps_total[5m]) / on (job, instance) group_left () sum by "
     "(job, instance) (rate(kdtree_moe_layer_steps_total[5m]))"},
    {Metric::moe_expected_idle_layer_steps,
     "kdtree_moe_expected_idle_layer_steps_total",
     counter,
     "1",
     {},
     "What each rank's kdtree_moe_rank_idle_layer_steps_total would have grown by, had routing "
     "been "
     "uniform at the same tokens a step and top-k; since the agent first saw the process.",
     kNoSteps,
     kSums,
     "rate(kdtree_moe_rank_idle_layer_steps_total[5m]) / on (job, instance) group_left () "
     "rate(kdtree_moe_expected_idle_layer_steps_total[5m])"},
    {Metric::moe_rank_straggler_layer_steps, "kdtree_moe_rank_straggler_layer_steps_total", counter,
     "1", kMoeRank,
     "Pairs of layer and step in which this rank had most assignments of all, so that the others "
     "waited for it; shared "
     "where ranks tie. Uniform routing gives each rank 1/ep_size of the pairs.",
     kNoSteps, kStatsCost,
     "rate(kdtree_moe_rank_straggler_layer_steps_total[5m]) / on (job, instance) group_left () avg "
     "by (job, instance) "
     "(rate(kdtree_moe_rank_straggler_layer_steps_total[5m]))"},
    {Metric::moe_peak_tokens, "kdtree_moe_peak_tokens_total", counter, "1", kLayer,
     "Assignments of the rank that had most of them in a step, summed over steps: what the layer's "
     "other ranks waited "
     "for. A rank's mean is kdtree_moe_layer_tokens_total / ep_size.",
     kNoSteps, kStatsCost,
     "sum by (job, instance) (rate(kdtree_moe_peak_tokens_total[5m])) / avg by (job, instance) "
     "(rate(kdtree_moe_rank_tokens_total[5m]))"},
    {Metric::moe_expected_peak_tokens, "kdtree_moe_expected_peak_tokens_total", counter, "1",
     kLayer,
     "What kdtree_moe_peak_tokens_total would have grown by, had routing been uniform at the same "
     "tokens in each step "
     "and top-k; since the agent first saw the process.",
     kNoSteps, kSums,
     "sum by (job, instance) (rate(kdtree_moe_peak_tokens_total[5m])) / sum by (job, instance) "
     "(rate(kdtree_moe_expected_peak_tokens_total[5m]))"},
    {Metric::moe_layer_tokens, "kdtree_moe_layer_tokens_total", counter, "1", kLayer,
     "Assignments of tokens to experts of this layer.", kNoMoe, kStatsCost,
     "rate(kdtree_moe_layer_tokens_total[5m])"},
    {Metric::moe_layer_steps, "kdtree_moe_layer_steps_total", counter, "1", kLayer,
     "Steps seen by this layer.", kNoMoe, kStatsCost, "rate(kdtree_moe_layer_steps_total[5m])"},
    {Metric::moe_unique_experts, "kdtree_moe_unique_experts_total", counter, "1", kLayer,
     "Distinct experts that got a token, summed over steps: over kdtree_moe_layer_steps_total, the "
     "number of experts whose weights a step reads.",
     kNoMoe, kStatsCost,
     "rate(kdtree_moe_unique_experts_total[5m]) / rate(kdtree_moe_layer_steps_total[5m])"},
    {Metric::moe_expected_unique_experts, "kdtree_moe_expected_unique_experts_total", counter, "1",
     kLayer,
     "What kdtree_moe_unique_experts_total would have grown by, had routing been uniform at the "
     "same "
     "tokens a step and top-k; since the agent first saw the process.",
     kNoMoe, kSums,
     "rate(kdtree_moe_unique_experts_total[5m]) / "
     "rate(kdtree_moe_expected_unique_experts_total[5m])"},
    {Metric::moe_peak_load,
     "kdtree_moe_peak_load_ratio",
     gauge,
     "ratio",
     {},
     "Highest rank load over the mean one, of the last 30 s as a whole: the sum of the layers' "
     "highest over the sum of "
     "their means. What one step has too much and the next too little evens out here: this shows "
     "where experts lie "
     "badly, kdtree_moe_peak_tokens_total what steps wait for. 1 is even, ep_size is all on one "
     "rank; always 1 at "
     "ep_size 1.",
     kNoWindow,
     kSums,
     "kdtree_moe_peak_load_ratio / kdtree_moe_expected_peak_load_ratio"},
    {Metric::moe_expected_peak_load,
     "kdtree_moe_expected_peak_load_ratio",
     gauge,
     "ratio",
     {},
     "What kdtree_moe_peak_load_ratio is on average for as many tokens routed uniformly: above 1, "
     "and the more so the fewer tokens.",
     kNoWindow,
     kSums,
     "kdtree_moe_expected_peak_load_ratio"},
    {Metric::moe_layer_peak_load, "kdtree_moe_layer_peak_load_ratio", gauge, "ratio", kLayer,
     "The same of one layer (or of a group, see kdtree_moe_layer_rank_tokens_total).",
     "ep_size is 1, or nothing was routed in the last 30 s", kSums,
     "topk(3, kdtree_moe_layer_peak_load_ratio / kdtree_moe_layer_expected_peak_load_ratio)"},
    {Metric::moe_layer_expected_peak_load, "kdtree_moe_layer_expected_peak_load_ratio", gauge,
     "ratio", kLayer, "What the layer's ratio is on average for as many tokens routed uniformly.",
     "ep_size is 1, or nothing was routed in the last 30 s", kSums,
     "kdtree_moe_layer_expected_peak_load_ratio"},
    {Metric::moe_what_if_peak_load, "kdtree_moe_what_if_peak_load_ratio", gauge, "ratio", kEpSize,
     "kdtree_moe_peak_load_ratio of the same routing, had the experts been laid out in order over "
     "ep_size ranks: for each other ep_size that divides tp_size.",
     kNoWindow, kSums, "kdtree_moe_what_if_peak_load_ratio"},
    {Metric::moe_what_if_expected_peak_load, "kdtree_moe_what_if_expected_peak_load_ratio", gauge,
     "ratio", kEpSize, "What that is on average for as many tokens routed uniformly.", kNoWindow,
     kSums, "kdtree_moe_what_if_peak_load_ratio / kdtree_moe_what_if_expected_peak_load_ratio"},
    {Metric::moe_what_if_peak_tokens, "kdtree_moe_what_if_peak_tokens_total", counter, "1",
     kWhatIfLayer,
     "kdtree_moe_peak_tokens_total of the same steps, had the experts been laid out in order over "
     "ep_size = tp_size ranks.",
     kNoWhatIfSteps, kStatsCost,
     "sum by (job, instance, ep_size) (rate(kdtree_moe_what_if_peak_tokens_total[5m])) / sum by "
     "(job, instance, "
     "ep_size) (rate(kdtree_moe_what_if_expected_peak_tokens_total[5m]))"},
    {Metric::moe_what_if_expected_peak_tokens, "kdtree_moe_what_if_expected_peak_tokens_total",
     counter, "1", kWhatIfLayer,
     "What that would have grown by with uniform routing; since the agent first saw the process.",
     kNoWhatIfSteps, kSums,
     "sum by (job, instance, ep_size) (rate(kdtree_moe_what_if_expected_peak_tokens_total[5m]))"},
    {Metric::moe_what_if_rank_straggler_layer_steps,
     "kdtree_moe_what_if_rank_straggler_layer_steps_total", counter, "1", kWhatIfRank,
     "kdtree_moe_rank_straggler_layer_steps_total of the same steps with ep_size = tp_size.",
     kNoWhatIfSteps, kStatsCost, "rate(kdtree_moe_what_if_rank_straggler_layer_steps_total[5m])"},
    {Metric::moe_what_if_rank_idle_layer_steps, "kdtree_moe_what_if_rank_idle_layer_steps_total",
     counter, "1", kWhatIfRank,
     "kdtree_moe_rank_idle_layer_steps_total of the same steps with ep_size = tp_size.",
     kNoWhatIfSteps, kStatsCost,
     "rate(kdtree_moe_what_if_rank_idle_layer_steps_total[5m]) / on (job, instance) group_left () "
     "sum by (job, "
     "instance) (rate(kdtree_moe_layer_steps_total[5m]))"},
    {Metric::moe_what_if_expected_idle_layer_steps,
     "kdtree_moe_what_if_expected_idle_layer_steps_total", counter, "1", kEpSize,
     "What each rank's would have grown by with uniform routing; since the agent first saw the "
     "process.",
     kNoWhatIfSteps, kSums, "rate(kdtree_moe_what_if_expected_idle_layer_steps_total[5m])"},
    {Metric::moe_expert_tokens, "kdtree_moe_expert_tokens_total", counter, "1", kExpert,
     "Assignments of tokens to one expert. Only on request: scrape /metrics/experts, which has "
     "nothing else (layers x experts series, 23 thousand for 60 x 384).",
     "in /metrics; and where no living rank observes routing", "its size, where it is asked for",
     "topk by (job, instance, layer) (1, rate(kdtree_moe_expert_tokens_total[5m]))"},
};

}  // namespace

std::span<const MetricSpec> moe_metrics() { return kCatalog; }

}  // namespace kdtree
