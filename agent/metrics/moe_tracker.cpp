// SPDX-License-Identifier: Apache-2.0
#include "agent/metrics/moe_tracker.h"

#include <algorithm>
#include <numeric>

#include "agent/metrics/moe_uniform.h"

namespace kdtree {
namespace {

void subtract(const ExpertTable& now, const ExpertTable& before, ExpertTable& grown) {
  grown.resize(now.size());
  for (std::size_t i = 0; i < now.size(); ++i)
    grown[i] = now[i] >= before[i] ? now[i] - before[i] : 0;
}

}  // namespace

void MoeTracker::begin_anew(const RankStats& rank) {
  *this = MoeTracker();
  pid_ = rank.pid;
  start_ticks_ = rank.pid_start_ticks;
  before_ = rank.moe->expert_tokens;
  steps_before_ = rank.moe->layer_steps;
  expected_unique_.assign(rank.moe->layers, 0);
}

void MoeTracker::take(const RankStats& rank, const std::optional<MoeLayout>& layout,
                      std::chrono::steady_clock::time_point now) {
  const MoeStats& moe = *rank.moe;
  if (rank.pid != pid_ || rank.pid_start_ticks != start_ticks_ ||
      before_.size() != moe.expert_tokens.size())
    begin_anew(rank);
  subtract(moe.expert_tokens, before_, grown_);
  add_expected(moe, layout ? &*layout : nullptr);
  if (layout && layout->placed) add_highest(moe, *layout);
  before_ = moe.expert_tokens;
  steps_before_ = moe.layer_steps;
  slide(moe, now);
}

// The tokens of a step are taken as their mean over the look.
void MoeTracker::add_expected(const MoeStats& moe, const MoeLayout* layout) {
  const bool idle = layout != nullptr && layout->placed && layout->ep_size > 1 &&
                    moe.idle_ranks_width == static_cast<std::uint32_t>(layout->ep_size) &&
                    !moe.idle_ranks.empty();
  if (!idle)
    expected_idle_.reset();
  else if (!expected_idle_)
    expected_idle_ = 0;
  if (moe.layer_steps.size() != moe.layers || steps_before_.size() != moe.layers || moe.top_k == 0)
    return;
  const auto experts = static_cast<int>(moe.experts);
  const auto top_k = static_cast<int>(moe.top_k);
  for (std::size_t layer = 0; layer < moe.layers; ++layer) {
    if (moe.layer_steps[layer] <= steps_before_[layer]) continue;
    const auto steps = static_cast<double>(moe.layer_steps[layer] - steps_before_[layer]);
    const auto row = grown_.begin() + static_cast<std::ptrdiff_t>(layer * moe.experts);
    const double assigned = std::accumulate(row, row + experts, 0.0);
    const double tokens = assigned / top_k / steps;
    expected_unique_[layer] += steps * uniform_unique_experts(experts, top_k, tokens);
    if (idle)
      *expected_idle_ += steps * uniform_idle_share(experts, layout->ep_size, top_k, tokens);
  }
}

void MoeTracker::add_highest(const MoeStats& moe, const MoeLayout& layout) {
  highest_.resize(static_cast<std::size_t>(layout.ep_size));
  if (layout.ep_size == 1) return;
  for (const auto& groups : group_loads(moe, grown_, layout.ep_size)) {
    const std::uint64_t highest = *std::max_element(groups.begin(), groups.end());
    if (highest == 0) continue;
    const auto ties = static_cast<double>(std::count(groups.begin(), groups.end(), highest));
    for (std::size_t group = 0; group < groups.size(); ++group)
      if (groups[group] == highest) highest_[group] += 1 / ties;
    intervals_ += 1;
  }
}

void MoeTracker::slide(const MoeStats& moe, std::chrono::steady_clock::time_point now) {
  while (kept_.size() > 1 && now - kept_[1].at >= kSpan) kept_.pop_front();
  window_.clear();
  window_steps_ = window_tokens_ = 0;
  if (!kept_.empty()) {
    subtract(moe.expert_tokens, kept_.front().table, window_);
    window_steps_ = moe.steps - std::min(moe.steps, kept_.front().steps);
    window_tokens_ = moe.tokens - std::min(moe.tokens, kept_.front().tokens);
  }
  if (kept_.empty() || now - kept_.back().at >= kStep)
    kept_.push_back({now, moe.expert_tokens, moe.steps, moe.tokens});
}

std::optional<double> MoeTracker::tokens_per_step() const {
  if (window_steps_ == 0) return std::nullopt;
  return static_cast<double>(window_tokens_) / static_cast<double>(window_steps_);
}

}  // namespace kdtree
