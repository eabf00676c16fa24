// SPDX-License-Identifier: Apache-2.0
#include "agent/metrics/moe_load.h"

#include <algorithm>
#include <numeric>

#include "agent/metrics/moe_uniform.h"

namespace kdtree {

std::optional<MoeLayout> moe_layout(const RankStats& rank, std::optional<int> ep_size_override) {
  if (!rank.moe) return std::nullopt;
  MoeLayout layout;
  layout.ep_size = ep_size_override.value_or(rank.moe_ep_size.value_or(0));
  if (layout.ep_size < 1) return std::nullopt;
  layout.tp_size = std::max(rank.tp_size.value_or(layout.ep_size), layout.ep_size);
  const auto experts = static_cast<int>(rank.moe->experts);
  if (layout.tp_size % layout.ep_size != 0 || experts % layout.ep_size != 0) return std::nullopt;
  layout.placed = layout.ep_size == 1 || ep_size_override.has_value() ||
                  rank.moe->step_ranks == static_cast<std::uint32_t>(layout.ep_size);
  return layout;
}

bool MoeLayout::counts_steps(const MoeStats& moe) const {
  return placed && step_ranks() > 1 && moe.step_ranks == static_cast<std::uint32_t>(step_ranks()) &&
         !moe.idle_ranks.empty() && !moe.peaks.empty() && !moe.stragglers.empty();
}

std::vector<int> other_ep_sizes(const MoeLayout& layout, std::uint32_t experts) {
  std::vector<int> sizes;
  for (int size = 2; size <= layout.tp_size; ++size)
    if (size != layout.ep_size && layout.tp_size % size == 0 &&
        experts % static_cast<std::uint32_t>(size) == 0)
      sizes.push_back(size);
  return sizes;
}

GroupLoads group_loads(const MoeStats& moe, const ExpertTable& table, int groups) {
  const auto count = static_cast<std::size_t>(groups);
  const std::size_t share = moe.experts / count;
  GroupLoads loads(moe.layers, std::vector<std::uint64_t>(count));
  for (std::size_t layer = 0; layer < moe.layers; ++layer) {
    const auto* row = table.data() + layer * moe.experts;
    for (std::size_t group = 0; group < count; ++group, row += share)
      loads[layer][group] = std::accumulate(row, row + share, std::uint64_t{0});
  }
  return loads;
}

std::vector<LayerGroup> layer_groups(const MoeStats& moe, int ranks) {
  const std::size_t series = moe.layers * static_cast<std::size_t>(std::max(ranks, 1));
  const std::size_t width =
      std::max({std::size_t{1}, (series + kMostLayerSeries - 1) / kMostLayerSeries,
                (moe.layers + kMostLayers - 1) / kMostLayers});
  std::vector<LayerGroup> groups;
  for (std::size_t first = 0; first < moe.layers; first += width) {
    const std::size_t last = std::min<std::size_t>(first + width, moe.layers) - 1;
    std::string name = std::to_string(moe.first_layer + first);
    if (last > first) name += "-" + std::to_string(moe.first_layer + last);
    groups.push_back({first, last, std::move(name)});
  }
  return groups;
}

std::optional<PeakLoad> peak_load(const MoeStats& moe, const GroupLoads& loads, std::size_t first,
                                  std::size_t last) {
  double means = 0;
  double highests = 0;
  double expected = 0;
  for (std::size_t layer = first; layer <= last; ++layer) {
    const auto& groups = loads[layer];
    const auto sum =
        static_cast<double>(std::accumulate(groups.begin(), groups.end(), std::uint64_t{0}));
    const double mean = sum / static_cast<double>(groups.size());
    means += mean;
    highests += static_cast<double>(*std::max_element(groups.begin(), groups.end()));
    expected +=
        mean * uniform_peak_load(static_cast<int>(moe.experts), static_cast<int>(groups.size()),
                                 static_cast<int>(moe.top_k), sum / std::max(1U, moe.top_k));
  }
  if (means <= 0) return std::nullopt;
  return PeakLoad{highests / means, expected / means};
}

}  // namespace kdtree
