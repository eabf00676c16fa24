// SPDX-License-Identifier: Apache-2.0
#include "agent/metrics/live.h"

#include <algorithm>

#include "agent/metrics/collect.h"
#include "agent/util/or_null.h"

namespace kdtree {
namespace {

using Json = nlohmann::ordered_json;

// What a label may not hold, a document may not either: the text can come from an engine's file.
std::string plain(std::string text) {
  std::replace_if(
      text.begin(), text.end(), [](char c) { return c < 0x20 || c > 0x7e; }, '?');
  return text;
}

Json json_of(const MoePicture& moe) {
  Json load = Json::array();
  for (const auto& layer : moe.load) {
    Json row = Json::array();
    for (const auto& value : layer) row.push_back(or_null(value));
    load.push_back(std::move(row));
  }
  return {{"ep_size", moe.ep_size},
          {"tp_size", moe.tp_size},
          {"experts", moe.experts},
          {"top_k", moe.top_k},
          {"shown_ep_size", moe.shown_ep_size},
          {"what_if", moe.what_if},
          {"tokens_per_step", or_null(moe.tokens_per_step)},
          {"peak", moe.peak ? Json(moe.peak->observed) : Json(nullptr)},
          {"expected_peak", moe.peak ? Json(moe.peak->expected) : Json(nullptr)},
          {"step_peak", moe.step_peak ? Json(moe.step_peak->observed) : Json(nullptr)},
          {"expected_step_peak", moe.step_peak ? Json(moe.step_peak->expected) : Json(nullptr)},
          {"layers", moe.layers},
          {"load", std::move(load)}};
}

Json json_of(int rank, const RankStats& stats) {
  const bool active = stats.patch_state == PatchState::active;
  return {{"rank", rank},
          {"state", patch_state_name(stats.patch_state)},
          {"reason", or_null(plain(stats.reason))},
          {"mode", active ? Json(to_string(stats.mode)) : Json(nullptr)},
          {"calls_kernel", stats.calls_kernel},
          {"calls_engine", stats.calls_engine},
          {"handed_back", stats.handed_back_total()},
          {"compares", stats.compares},
          {"mismatches", stats.mismatches},
          {"max_ulp", or_null(stats.max_ulp)}};
}

std::string key_of(const GpuSnapshot& gpu) {
  return gpu.uuid.empty() ? "#" + std::to_string(gpu.index) : gpu.uuid;
}

}  // namespace

void GpuHistory::add(const NvmlSnapshot& nvml, std::chrono::steady_clock::time_point now) {
  if (last_ && now - *last_ < kStep) return;
  // A late call leaves its gaps as gaps.
  const auto steps = last_ ? std::min<long>((now - *last_) / kStep, long{kColumns}) : 1;
  last_ = now;
  for (auto& [key, row] : rows_)
    row.columns.insert(row.columns.end(), static_cast<std::size_t>(steps), std::nullopt);
  for (const GpuSnapshot& gpu : nvml.gpus) {
    Row& row = rows_[key_of(gpu)];
    if (row.columns.empty()) row.columns.emplace_back();
    const auto observed = gpu.observed - row.observed;
    if (gpu.values && gpu.values->utilization && observed.count() > 0)
      row.columns.back() = std::clamp((gpu.busy - row.busy) / observed, 0.0, 1.0);
    row.busy = gpu.busy;
    row.observed = gpu.observed;
  }
  for (auto& [key, row] : rows_)
    while (row.columns.size() > kColumns) row.columns.pop_front();
}

std::vector<std::optional<double>> GpuHistory::row(const std::string& uuid) const {
  std::vector<std::optional<double>> out(kColumns);
  const auto found = rows_.find(uuid);
  if (found == rows_.end()) return out;
  std::copy(found->second.columns.rbegin(), found->second.columns.rend(), out.rbegin());
  return out;
}

std::optional<MoePicture> moe_picture(const HostView& view, const MoeTracker& tracker) {
  const RankStats* rank = moe_spokesman(view);
  if (rank == nullptr || tracker.window().empty() || rank->moe->layers == 0) return std::nullopt;
  const auto layout = moe_layout(*rank, view.config ? view.config->moe.ep_size : std::nullopt);
  if (!layout) return std::nullopt;
  const MoeStats& moe = *rank->moe;
  MoePicture picture;
  picture.ep_size = layout->ep_size;
  picture.tp_size = layout->tp_size;
  picture.experts = moe.experts;
  picture.top_k = moe.top_k;
  picture.tokens_per_step = tracker.tokens_per_step();
  const auto others = other_ep_sizes(*layout, moe.experts);
  picture.what_if = layout->ep_size == 1 && !others.empty();
  picture.shown_ep_size = picture.what_if ? others.back() : layout->ep_size;
  if (!picture.what_if && !layout->placed) return std::nullopt;
  const GroupLoads loads = group_loads(moe, tracker.window(), picture.shown_ep_size);
  for (const LayerGroup& layers : layer_groups(moe, picture.shown_ep_size)) {
    picture.layers.push_back(layers.name);
    std::vector<double> sums(static_cast<std::size_t>(picture.shown_ep_size));
    double total = 0;
    for (std::size_t layer = layers.first; layer <= layers.last; ++layer)
      for (std::size_t group = 0; group < sums.size(); ++group) {
        sums[group] += static_cast<double>(loads[layer][group]);
        total += static_cast<double>(loads[layer][group]);
      }
    std::vector<std::optional<double>> row(sums.size());
    if (total > 0)
      for (std::size_t group = 0; group < sums.size(); ++group)
        row[group] = sums[group] * static_cast<double>(sums.size()) / total;
    picture.load.push_back(std::move(row));
  }
  picture.peak = peak_load(moe, loads, 0, moe.layers - 1);
  if (picture.shown_ep_size == layout->step_ranks()) picture.step_peak = tracker.step_peak();
  return picture;
}

Json live_host(const HostView& view, const std::optional<MoePicture>& moe) {
  const auto ranks = living_ranks(view);
  Json verify = Json::array();
  for (const auto& [rank, stats] : ranks) verify.push_back(json_of(rank, *stats));
  return {{"host",
           {{"mode", view.control ? Json(to_string(view.control->mode)) : Json(nullptr)},
            {"release", or_null(plain(view.current_release))},
            {"trial", or_null(view.trial)},
            {"readable", view.host_readable},
            {"ranks_up", view.stats ? Json(ranks.size()) : Json(nullptr)},
            {"ranks_expected", view.config ? Json(view.config->engine.ranks) : Json(nullptr)}}},
          {"moe", moe ? json_of(*moe) : Json(nullptr)},
          {"ranks", std::move(verify)}};
}

Json live_gpus(const NvmlSnapshot& nvml, const GpuHistory& history) {
  Json rows = Json::array();
  for (const GpuSnapshot& gpu : nvml.gpus) {
    const GpuValues values = gpu.values.value_or(GpuValues{});
    Json columns = Json::array();
    for (const auto& value : history.row(key_of(gpu))) columns.push_back(or_null(value));
    rows.push_back(
        {{"gpu", gpu.index},
         {"uuid", or_null(gpu.uuid)},
         {"name", or_null(gpu.name)},
         {"state", gpu.condition ? Json(gpu_condition_name(*gpu.condition)) : Json(nullptr)},
         {"utilization", or_null(values.utilization)},
         {"utilization_max", or_null(values.utilization_max)},
         {"sm_active", or_null(values.gpm.sm_active)},
         {"tensor_active", or_null(values.gpm.tensor_active)},
         {"memory_used_bytes", or_null(values.memory_used_bytes)},
         {"memory_total_bytes", or_null(values.memory_total_bytes)},
         {"power_watts", or_null(values.power_watts)},
         {"temperature_celsius", or_null(values.temperature_celsius)},
         {"history", std::move(columns)}});
  }
  return {
      {"failure", nvml.failure ? Json(nvml_failure_name(nvml.failure->failure)) : Json(nullptr)},
      {"step_seconds", GpuHistory::kStep.count()},
      {"rows", std::move(rows)}};
}

}  // namespace kdtree
