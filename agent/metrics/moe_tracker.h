// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <deque>

#include "agent/metrics/moe_load.h"

namespace kdtree {

// Follows the routing counters of one process from look to look: what was routed in the last
// kSpan, and what uniform routing would have given since the first look. Another process begins
// anew.
class MoeTracker {
 public:
  static constexpr std::chrono::seconds kSpan{30};
  // At least so far apart are the tables kept (0.2 MB each for 60 x 384 experts): the window is up
  // to that longer.
  static constexpr std::chrono::seconds kStep{5};

  // `rank.moe` is set and has expert_tokens.
  void take(const RankStats& rank, const std::optional<MoeLayout>& layout,
            std::chrono::steady_clock::time_point now);

  // Assignments of the last kSpan. Empty: nothing to compare with yet.
  const ExpertTable& window() const { return window_; }

  // Mean tokens of a step over the last kSpan; nullopt: no step.
  std::optional<double> tokens_per_step() const;

  // Counters since the first look. [layers]; 0 for a layer without step counters.
  const std::vector<double>& expected_unique() const { return expected_unique_; }
  // Of each rank, over all layers; nullopt: idle ranks are not counted by the engine's processes.
  std::optional<double> expected_idle() const { return expected_idle_; }
  // [ep_size]: pairs of layer and look in which the group had the highest load; ties are shared.
  const std::vector<double>& highest() const { return highest_; }
  // Pairs of layer and look in which something was routed.
  double intervals() const { return intervals_; }

 private:
  struct Kept {
    std::chrono::steady_clock::time_point at;
    ExpertTable table;
    std::uint64_t steps, tokens;
  };
  void begin_anew(const RankStats& rank);
  void add_expected(const MoeStats& moe, const MoeLayout* layout);
  void add_highest(const MoeStats& moe, const MoeLayout& layout);
  void slide(const MoeStats& moe, std::chrono::steady_clock::time_point now);

  std::int64_t pid_ = 0;
  std::uint64_t start_ticks_ = 0;
  ExpertTable before_;  // of the last look
  ExpertTable grown_;   // since then
  std::vector<std::uint64_t> steps_before_;
  std::deque<Kept> kept_;
  ExpertTable window_;
  std::uint64_t window_steps_ = 0, window_tokens_ = 0;
  std::vector<double> expected_unique_;
  std::optional<double> expected_idle_;
  std::vector<double> highest_;
  double intervals_ = 0;
};

}  // namespace kdtree
