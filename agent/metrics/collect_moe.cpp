// SPDX-License-Identifier: Apache-2.0
#include <numeric>

#include "agent/metrics/collect.h"

namespace kdtree {
namespace {

double number(std::uint64_t value) { return static_cast<double>(value); }

// All ranks of a tensor-parallel engine route the same tokens: the lowest living one speaks for
// all.
const RankStats* spokesman(const HostView& view) {
  for (const auto& [rank, stats] : living_ranks(view))
    if (stats->moe && stats->moe->steps > 0 && !stats->moe->expert_tokens.empty()) return stats;
  return nullptr;
}

class MoeSeries {
 public:
  MoeSeries(Exposition& out, const MoeStats& moe) : out_(out), moe_(moe) {}

  void add_counters() {
    out_.add(Metric::moe_steps, number(moe_.steps));
    out_.add(Metric::moe_tokens, number(moe_.tokens));
    for (std::size_t layer = 0; layer < moe_.layers; ++layer) {
      const auto row =
          moe_.expert_tokens.begin() + static_cast<std::ptrdiff_t>(layer * moe_.experts);
      out_.add(Metric::moe_layer_tokens, {name(layer)},
               number(std::accumulate(row, row + moe_.experts, std::uint64_t{0})));
      if (!moe_.layer_steps.empty())
        out_.add(Metric::moe_layer_steps, {name(layer)}, number(moe_.layer_steps[layer]));
      if (!moe_.unique_experts.empty())
        out_.add(Metric::moe_unique_experts, {name(layer)}, number(moe_.unique_experts[layer]));
    }
  }

  void add_rank_load(const MoeLayout& layout) {
    out_.add(Metric::moe_layout_info,
             {std::to_string(layout.ep_size), std::to_string(layout.tp_size),
              std::to_string(moe_.experts), std::to_string(moe_.top_k)},
             1);
    if (!layout.placed) return;
    const auto groups = group_tokens(moe_, moe_.expert_tokens, layout);
    for (int rank = 0; rank < layout.tp_size; ++rank) {
      const auto group = static_cast<std::size_t>(layout.group_of_rank(rank));
      std::uint64_t tokens = 0;
      for (std::size_t layer = 0; layer < moe_.layers; ++layer) {
        tokens += groups[layer][group];
        if (layout.ep_size > 1)
          out_.add(Metric::moe_layer_rank_tokens, {name(layer), std::to_string(rank)},
                   number(groups[layer][group]));
      }
      out_.add(Metric::moe_rank_tokens, {std::to_string(rank)}, number(tokens));
      add_idle(layout, rank, group);
    }
  }

  void add_balance(const MoeLayout& layout, const MoeBalance& balance) {
    if (balance.ranks) out_.add(Metric::moe_balance, *balance.ranks);
    for (std::size_t layer = 0; layer < balance.layer_experts.size(); ++layer) {
      if (layout.ep_size > 1 && balance.layer_ranks[layer])
        out_.add(Metric::moe_layer_balance, {name(layer)}, *balance.layer_ranks[layer]);
      if (balance.layer_experts[layer])
        out_.add(Metric::moe_layer_expert_balance, {name(layer)}, *balance.layer_experts[layer]);
    }
  }

 private:
  std::string name(std::size_t layer) const { return std::to_string(moe_.first_layer + layer); }

  void add_idle(const MoeLayout& layout, int rank, std::size_t group) {
    if (layout.ep_size == 1 || moe_.idle_ranks.empty() ||
        moe_.idle_ranks_width != static_cast<std::uint32_t>(layout.ep_size))
      return;
    std::uint64_t idle = 0;
    for (std::size_t layer = 0; layer < moe_.layers; ++layer)
      idle += moe_.idle_ranks[layer * moe_.idle_ranks_width + group];
    out_.add(Metric::moe_rank_idle_layer_steps, {std::to_string(rank)}, number(idle));
  }

  Exposition& out_;
  const MoeStats& moe_;
};

}  // namespace

void add_moe_metrics(Exposition& out, const HostView& view, MoeWindow& window,
                     std::chrono::steady_clock::time_point now) {
  const RankStats* rank = spokesman(view);
  if (rank == nullptr) return;
  MoeSeries series(out, *rank->moe);
  series.add_counters();
  const auto layout = moe_layout(*rank, view.config ? view.config->moe.ep_size : std::nullopt);
  const ExpertTable span = window.since(*rank, now);
  if (!layout) return;
  series.add_rank_load(*layout);
  series.add_balance(*layout, moe_balance(*rank->moe, span, *layout));
}

}  // namespace kdtree
