// SPDX-License-Identifier: Apache-2.0
#include "agent/metrics/moe_load.h"

#include <algorithm>
#include <numeric>
#include <span>

namespace kdtree {
namespace {

std::optional<double> mean_over_highest(std::span<const std::uint64_t> loads) {
  const std::uint64_t highest = loads.empty() ? 0 : *std::max_element(loads.begin(), loads.end());
  if (highest == 0) return std::nullopt;
  const auto sum = std::accumulate(loads.begin(), loads.end(), 0.0);
  return sum / static_cast<double>(loads.size()) / static_cast<double>(highest);
}

}  // namespace

std::optional<MoeLayout> moe_layout(const RankStats& rank, std::optional<int> ep_size_override) {
  if (!rank.moe) return std::nullopt;
  MoeLayout layout;
  layout.ep_size = ep_size_override.value_or(rank.moe_ep_size.value_or(0));
  if (layout.ep_size < 1) return std::nullopt;
  layout.tp_size = std::max(rank.tp_size.value_or(layout.ep_size), layout.ep_size);
  const auto experts = static_cast<int>(rank.moe->experts);
  if (layout.tp_size % layout.ep_size != 0 || experts % layout.ep_size != 0) return std::nullopt;
  layout.placed = layout.ep_size == 1 || ep_size_override.has_value() ||
                  rank.moe->idle_ranks_width == static_cast<std::uint32_t>(layout.ep_size);
  return layout;
}

std::vector<std::vector<std::uint64_t>> group_tokens(const MoeStats& moe, const ExpertTable& table,
                                                     const MoeLayout& layout) {
  const auto groups = static_cast<std::size_t>(layout.ep_size);
  const std::size_t share = moe.experts / groups;
  std::vector<std::vector<std::uint64_t>> out(moe.layers, std::vector<std::uint64_t>(groups));
  for (std::size_t layer = 0; layer < moe.layers; ++layer)
    for (std::size_t expert = 0; expert < moe.experts; ++expert)
      out[layer][expert / share] += table[layer * moe.experts + expert];
  return out;
}

MoeBalance moe_balance(const MoeStats& moe, const ExpertTable& span, const MoeLayout& layout) {
  MoeBalance balance;
  if (span.empty()) return balance;
  const auto groups = group_tokens(moe, span, layout);
  double sum_of_means = 0;
  double sum_of_highests = 0;
  for (std::size_t layer = 0; layer < moe.layers; ++layer) {
    balance.layer_ranks.push_back(layout.placed ? mean_over_highest(groups[layer]) : std::nullopt);
    balance.layer_experts.push_back(
        mean_over_highest(std::span(span).subspan(layer * moe.experts, moe.experts)));
    const auto highest = *std::max_element(groups[layer].begin(), groups[layer].end());
    sum_of_highests += static_cast<double>(highest);
    sum_of_means += std::accumulate(groups[layer].begin(), groups[layer].end(), 0.0) /
                    static_cast<double>(groups[layer].size());
  }
  if (layout.placed && sum_of_highests > 0) balance.ranks = sum_of_means / sum_of_highests;
  return balance;
}

ExpertTable MoeWindow::since(const RankStats& rank, std::chrono::steady_clock::time_point now) {
  const ExpertTable& table = rank.moe->expert_tokens;
  if (rank.pid != pid_ || rank.pid_start_ticks != start_ticks_ ||
      (!kept_.empty() && kept_.back().table.size() != table.size()))
    kept_.clear();
  pid_ = rank.pid;
  start_ticks_ = rank.pid_start_ticks;
  while (kept_.size() > 1 && now - kept_[1].at >= kSpan) kept_.pop_front();

  ExpertTable grown;
  if (!kept_.empty()) {
    const ExpertTable& before = kept_.front().table;
    grown.resize(table.size());
    for (std::size_t i = 0; i < table.size(); ++i)
      grown[i] = table[i] >= before[i] ? table[i] - before[i] : 0;
  }
  if (kept_.empty() || now - kept_.back().at >= kStep) kept_.push_back({now, table});
  return grown;
}

}  // namespace kdtree
