// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <vector>

#include "agent/stats/rank_stats.h"

namespace kdtree {

using ExpertTable = std::vector<std::uint64_t>;  // [layers * experts], row-major

// Where the experts are. Rank r of tp_size holds the experts of group r / (tp_size / ep_size),
// whole at ep_size == tp_size, a slice of each otherwise.
struct MoeLayout {
  int ep_size = 1;
  int tp_size = 1;
  bool placed = false;  // an expert's group is expert / (experts / ep_size); false: not known, no
                        // rank load is shown
  int group_of_rank(int rank) const { return rank / (tp_size / ep_size); }
};

// From the engine's own numbers, or from `ep_size_override` where the configuration gives one.
// nullopt: they make no sense together.
std::optional<MoeLayout> moe_layout(const RankStats& rank, std::optional<int> ep_size_override);

// Assignments to each group: [layers][ep_size].
std::vector<std::vector<std::uint64_t>> group_tokens(const MoeStats& moe, const ExpertTable& table,
                                                     const MoeLayout& layout);

// How even the load was over a span. Each value is mean over highest: 1 is even. nullopt: nothing
// was routed, or not known.
struct MoeBalance {
  std::optional<double> ranks;                     // sum over layers of means over sum of highests
  std::vector<std::optional<double>> layer_ranks;  // [layers]
  std::vector<std::optional<double>> layer_experts;  // [layers]
};
MoeBalance moe_balance(const MoeStats& moe, const ExpertTable& span, const MoeLayout& layout);

// Remembers the counters of the last 30 s of one process.
class MoeWindow {
 public:
  static constexpr std::chrono::seconds kSpan{30};
  static constexpr std::chrono::seconds kStep{1};  // at least so far apart are the tables kept

  // What was assigned since the oldest table kept; takes `rank`'s table in. Empty: none to compare
  // with yet.
  ExpertTable since(const RankStats& rank, std::chrono::steady_clock::time_point now);

 private:
  struct Kept {
    std::chrono::steady_clock::time_point at;
    ExpertTable table;
  };
  std::int64_t pid_ = 0;
  std::uint64_t start_ticks_ = 0;
  std::deque<Kept> kept_;
};

}  // namespace kdtree
