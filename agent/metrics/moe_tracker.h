// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <deque>
#include <map>

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
  // [layers]: assignments of a step's fullest rank, summed over steps.
  const std::vector<double>& expected_peaks() const { return expected_peaks_; }
  // Of each rank, over all layers; nullopt: the engine's processes don't count by rank and step.
  std::optional<double> expected_idle() const { return expected_idle_; }

  // A step's fullest rank over the mean, of the last kSpan; nullopt: no step, or not counted.
  std::optional<PeakLoad> step_peak() const;

 private:
  struct Kept {
    std::chrono::steady_clock::time_point at;
    ExpertTable table;
    std::uint64_t steps, tokens;
    double peaks, expected_peaks;
  };
  using Passes = std::map<std::uint64_t, std::uint64_t>;  // by tokens

  void begin_anew(const RankStats& rank);
  void add_expected(const MoeStats& moe, int step_ranks, const Passes& all_passes);
  void slide(const MoeStats& moe, std::chrono::steady_clock::time_point now);

  std::int64_t pid_ = 0;
  std::uint64_t start_ticks_ = 0;
  ExpertTable before_;  // of the last look
  ExpertTable grown_;   // since then
  std::vector<std::uint64_t> steps_before_;
  Passes passes_before_;
  std::deque<Kept> kept_;
  ExpertTable window_;
  std::uint64_t window_steps_ = 0, window_tokens_ = 0;
  double window_peaks_ = 0, window_expected_peaks_ = 0;
  int step_ranks_ = 0;
  std::vector<double> expected_unique_, expected_peaks_;
  std::optional<double> expected_idle_;
};

}  // namespace kdtree
