// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "agent/stats/rank_stats.h"

namespace kdtree {

using ExpertTable = std::vector<std::uint64_t>;  // [layers * experts], row-major
// Assignments to each group of experts: [layers][groups].
using GroupLoads = std::vector<std::vector<std::uint64_t>>;

// Where the experts are. Rank r of tp_size holds the experts of group r / (tp_size / ep_size),
// whole at ep_size == tp_size, a slice of each otherwise.
struct MoeLayout {
  int ep_size = 1;
  int tp_size = 1;
  bool placed = false;  // an expert's group is expert / (experts / ep_size); false: not known, no
                        // rank load is shown
  int group_of_rank(int rank) const { return rank / (tp_size / ep_size); }
  // Ranks whose load is counted step by step: those that hold whole experts, or at ep_size 1 those
  // that would.
  int step_ranks() const { return ep_size > 1 ? ep_size : tp_size; }
  // The engine's processes count by rank and step for just these.
  bool counts_steps(const MoeStats& moe) const;
};

// From the engine's own numbers, or from `ep_size_override` where the configuration gives one.
// nullopt: they make no sense together.
std::optional<MoeLayout> moe_layout(const RankStats& rank, std::optional<int> ep_size_override);

// The other ep_sizes that the same ranks could have: those above 1 that divide tp_size and the
// number of experts, the present one left out; ascending.
std::vector<int> other_ep_sizes(const MoeLayout& layout, std::uint32_t experts);

GroupLoads group_loads(const MoeStats& moe, const ExpertTable& table, int groups);

// Neighbouring layers that share a series, so that layers x ranks stay within kMostLayerSeries and
// layers within kMostLayers.
struct LayerGroup {
  std::size_t first = 0, last = 0;  // rows of the tables, inclusive
  std::string name;                 // layer ids: "7", "8-11"
};
inline constexpr std::size_t kMostLayerSeries = 512;
inline constexpr std::size_t kMostLayers = 100;
std::vector<LayerGroup> layer_groups(const MoeStats& moe, int ranks);

// Highest group load over the mean one, over some layers: sum of their highest over sum of their
// means. nullopt: nothing was routed there. `expected`: what it is on average for as many tokens
// routed uniformly (moe_uniform.h).
struct PeakLoad {
  double observed = 1;
  double expected = 1;
};
std::optional<PeakLoad> peak_load(const MoeStats& moe, const GroupLoads& loads, std::size_t first,
                                  std::size_t last);

}  // namespace kdtree
