// SPDX-License-Identifier: Apache-2.0
#include "agent/metrics/moe_tracker.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "agent/metrics/moe_uniform.h"

namespace kdtree {
namespace {

void subtract(const ExpertTable& now, const ExpertTable& before, ExpertTable& grown) {
  grown.resize(now.size());
  for (std::size_t i = 0; i < now.size(); ++i)
    grown[i] = now[i] >= before[i] ? now[i] - before[i] : 0;
}

double sum_of(const std::vector<std::uint64_t>& values) {
  return std::accumulate(values.begin(), values.end(), 0.0);
}

// What a step gives on average, where steps of `weight` steps had `tokens`.
struct StepSize {
  double tokens = 0;
  double weight = 0;
};
struct Uniform {
  double unique = 0, idle = 0, peak = 0;
};
Uniform uniform_step(const MoeStats& moe, int ranks, const std::vector<StepSize>& sizes) {
  const auto experts = static_cast<int>(moe.experts);
  const auto top_k = static_cast<int>(moe.top_k);
  Uniform mean;
  double weights = 0;
  for (const auto& [tokens, weight] : sizes) {
    weights += weight;
    mean.unique += weight * uniform_unique_experts(experts, top_k, tokens);
    if (ranks == 0) continue;
    mean.idle += weight * uniform_idle_share(experts, ranks, top_k, tokens);
    mean.peak += weight * tokens * top_k / ranks * uniform_peak_load(experts, ranks, top_k, tokens);
  }
  return {mean.unique / weights, mean.idle / weights, mean.peak / weights};
}

std::map<std::uint64_t, std::uint64_t> passes_of(const MoeStats& moe) {
  std::map<std::uint64_t, std::uint64_t> passes;
  for (std::size_t i = 0; i + 1 < moe.pass_rows.size(); i += 2)
    if (moe.pass_rows[i] > 0) passes[moe.pass_rows[i]] += moe.pass_rows[i + 1];
  return passes;
}

}  // namespace

void MoeTracker::begin_anew(const RankStats& rank) {
  *this = MoeTracker();
  pid_ = rank.pid;
  start_ticks_ = rank.pid_start_ticks;
  before_ = rank.moe->expert_tokens;
  steps_before_ = rank.moe->layer_steps;
  passes_before_ = passes_of(*rank.moe);
  expected_unique_.assign(rank.moe->layers, 0);
  expected_peaks_.assign(rank.moe->layers, 0);
}

void MoeTracker::take(const RankStats& rank, const std::optional<MoeLayout>& layout,
                      std::chrono::steady_clock::time_point now) {
  const MoeStats& moe = *rank.moe;
  if (rank.pid != pid_ || rank.pid_start_ticks != start_ticks_ ||
      before_.size() != moe.expert_tokens.size())
    begin_anew(rank);
  subtract(moe.expert_tokens, before_, grown_);
  const int step_ranks = layout && layout->counts_steps(moe) ? layout->step_ranks() : 0;
  if (step_ranks != step_ranks_) {
    kept_.clear();
    expected_idle_.reset();
  }
  step_ranks_ = step_ranks;
  auto passes = passes_of(moe);
  add_expected(moe, step_ranks, passes);
  before_ = moe.expert_tokens;
  steps_before_ = moe.layer_steps;
  passes_before_ = std::move(passes);
  slide(moe, now);
}

void MoeTracker::add_expected(const MoeStats& moe, int step_ranks, const Passes& all_passes) {
  if (step_ranks > 0 && !expected_idle_) expected_idle_ = 0;
  if (moe.layer_steps.size() != moe.layers || steps_before_.size() != moe.layers || moe.top_k == 0)
    return;
  std::vector<StepSize> sizes;
  for (const auto& [tokens, passes] : all_passes) {
    const auto found = passes_before_.find(tokens);
    const std::uint64_t before = found == passes_before_.end() ? 0 : found->second;
    if (passes > before)
      sizes.push_back({static_cast<double>(tokens), static_cast<double>(passes - before)});
  }
  std::optional<Uniform> each;
  if (!sizes.empty()) each = uniform_step(moe, step_ranks, sizes);
  for (std::size_t layer = 0; layer < moe.layers; ++layer) {
    if (moe.layer_steps[layer] <= steps_before_[layer]) continue;
    const auto steps = static_cast<double>(moe.layer_steps[layer] - steps_before_[layer]);
    const auto row = grown_.begin() + static_cast<std::ptrdiff_t>(layer * moe.experts);
    const double assigned = std::accumulate(row, row + moe.experts, 0.0);
    const Uniform step =
        each ? *each : uniform_step(moe, step_ranks, {{assigned / moe.top_k / steps, 1}});
    expected_unique_[layer] += steps * step.unique;
    expected_peaks_[layer] += steps * step.peak;
    if (step_ranks > 0) *expected_idle_ += steps * step.idle;
  }
}

void MoeTracker::slide(const MoeStats& moe, std::chrono::steady_clock::time_point now) {
  while (kept_.size() > 1 && now - kept_[1].at >= kSpan) kept_.pop_front();
  const double peaks = sum_of(moe.peaks);
  const double expected_peaks =
      std::accumulate(expected_peaks_.begin(), expected_peaks_.end(), 0.0);
  window_.clear();
  window_steps_ = window_tokens_ = 0;
  window_peaks_ = window_expected_peaks_ = 0;
  if (!kept_.empty()) {
    const Kept& first = kept_.front();
    subtract(moe.expert_tokens, first.table, window_);
    window_steps_ = moe.steps - std::min(moe.steps, first.steps);
    window_tokens_ = moe.tokens - std::min(moe.tokens, first.tokens);
    window_peaks_ = peaks - first.peaks;
    window_expected_peaks_ = expected_peaks - first.expected_peaks;
  }
  if (kept_.empty() || now - kept_.back().at >= kStep)
    kept_.push_back({now, moe.expert_tokens, moe.steps, moe.tokens, peaks, expected_peaks});
}

std::optional<PeakLoad> MoeTracker::step_peak() const {
  const double mean = step_ranks_ > 0 ? sum_of(window_) / step_ranks_ : 0;
  if (mean <= 0 || window_peaks_ <= 0) return std::nullopt;
  return PeakLoad{window_peaks_ / mean, window_expected_peaks_ / mean};
}

std::optional<double> MoeTracker::tokens_per_step() const {
  if (window_steps_ == 0) return std::nullopt;
  return static_cast<double>(window_tokens_) / static_cast<double>(window_steps_);
}

}  // namespace kdtree
