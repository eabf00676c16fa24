// SPDX-License-Identifier: Apache-2.0
#include <numeric>

#include "agent/metrics/collect.h"

namespace kdtree {
namespace {

double number(std::uint64_t value) { return static_cast<double>(value); }

template <typename Value>
double sum_of(const std::vector<Value>& values, const LayerGroup& layers) {
  return std::accumulate(values.begin() + static_cast<std::ptrdiff_t>(layers.first),
                         values.begin() + static_cast<std::ptrdiff_t>(layers.last) + 1, 0.0);
}

class MoeSeries {
 public:
  MoeSeries(Exposition& out, const MoeStats& moe, const MoeTracker& tracker, int ranks)
      : out_(out), moe_(moe), tracker_(tracker), layers_(layer_groups(moe, ranks)) {}

  void add_counters() {
    out_.add(Metric::moe_steps, number(moe_.steps));
    out_.add(Metric::moe_tokens, number(moe_.tokens));
    const GroupLoads all = group_loads(moe_, moe_.expert_tokens, 1);
    for (const LayerGroup& layers : layers_) {
      double tokens = 0;
      for (std::size_t i = layers.first; i <= layers.last; ++i) tokens += number(all[i][0]);
      out_.add(Metric::moe_layer_tokens, {layers.name}, tokens);
      if (!moe_.layer_steps.empty())
        out_.add(Metric::moe_layer_steps, {layers.name}, sum_of(moe_.layer_steps, layers));
      if (moe_.unique_experts.empty()) continue;
      out_.add(Metric::moe_unique_experts, {layers.name}, sum_of(moe_.unique_experts, layers));
      double expected = 0;
      for (std::size_t i = layers.first; i <= layers.last; ++i)
        expected += tracker_.expected_unique()[i];
      out_.add(Metric::moe_expected_unique_experts, {layers.name}, expected);
    }
  }

  void add_layout(const MoeLayout& layout) {
    out_.add(Metric::moe_layout_info,
             {std::to_string(layout.ep_size), std::to_string(layout.tp_size),
              std::to_string(moe_.experts), std::to_string(moe_.top_k)},
             1);
  }

  void add_rank_load(const MoeLayout& layout) {
    const GroupLoads loads = group_loads(moe_, moe_.expert_tokens, layout.ep_size);
    for (int rank = 0; rank < layout.tp_size; ++rank) {
      const auto group = static_cast<std::size_t>(layout.group_of_rank(rank));
      const std::string name = std::to_string(rank);
      double tokens = 0;
      for (const auto& layer : loads) tokens += number(layer[group]);
      out_.add(Metric::moe_rank_tokens, {name}, tokens);
      if (layout.ep_size == 1) continue;
      add_layer_rank(loads, group, [&](const std::string& layer, double load) {
        out_.add(Metric::moe_layer_rank_tokens, {layer, name}, load);
      });
    }
  }

  // Of each step by itself: as laid out, and at ep_size 1 as EP = TP would be.
  void add_steps(const MoeLayout& layout) {
    if (!layout.counts_steps(moe_)) return;
    const bool what_if = layout.ep_size == 1;
    const std::string ep_size = std::to_string(layout.step_ranks());
    const auto add = [&](Metric as_laid_out, Metric otherwise, std::vector<std::string> labels,
                         double value) {
      if (what_if) labels.insert(labels.begin(), ep_size);
      out_.add(what_if ? otherwise : as_laid_out, labels, value);
    };
    for (const LayerGroup& layers : layers_) {
      add(Metric::moe_peak_tokens, Metric::moe_what_if_peak_tokens, {layers.name},
          sum_of(moe_.peaks, layers));
      add(Metric::moe_expected_peak_tokens, Metric::moe_what_if_expected_peak_tokens, {layers.name},
          sum_of(tracker_.expected_peaks(), layers));
    }
    for (int rank = 0; rank < (what_if ? layout.step_ranks() : layout.tp_size); ++rank) {
      const auto group = static_cast<std::size_t>(what_if ? rank : layout.group_of_rank(rank));
      add(Metric::moe_rank_straggler_layer_steps, Metric::moe_what_if_rank_straggler_layer_steps,
          {std::to_string(rank)}, column(moe_.stragglers, group) / KDTREE_STATS_SHARE);
      add(Metric::moe_rank_idle_layer_steps, Metric::moe_what_if_rank_idle_layer_steps,
          {std::to_string(rank)}, column(moe_.idle_ranks, group));
    }
    add(Metric::moe_expected_idle_layer_steps, Metric::moe_what_if_expected_idle_layer_steps, {},
        tracker_.expected_idle().value_or(0));
  }

  void add_peaks(const MoeLayout& layout) {
    if (tracker_.window().empty() || moe_.layers == 0) return;
    const GroupLoads loads = group_loads(moe_, tracker_.window(), layout.ep_size);
    if (const auto peak = peak_load(moe_, loads, 0, moe_.layers - 1)) {
      out_.add(Metric::moe_peak_load, peak->observed);
      out_.add(Metric::moe_expected_peak_load, peak->expected);
    }
    if (layout.ep_size == 1) return;
    for (const LayerGroup& layers : layers_)
      if (const auto peak = peak_load(moe_, loads, layers.first, layers.last)) {
        out_.add(Metric::moe_layer_peak_load, {layers.name}, peak->observed);
        out_.add(Metric::moe_layer_expected_peak_load, {layers.name}, peak->expected);
      }
  }

  void add_what_if(const MoeLayout& layout) {
    for (const int size : other_ep_sizes(layout, moe_.experts)) {
      const std::string ep_size = std::to_string(size);
      if (!tracker_.window().empty() && moe_.layers > 0)
        if (const auto peak =
                peak_load(moe_, group_loads(moe_, tracker_.window(), size), 0, moe_.layers - 1)) {
          out_.add(Metric::moe_what_if_peak_load, {ep_size}, peak->observed);
          out_.add(Metric::moe_what_if_expected_peak_load, {ep_size}, peak->expected);
        }
      if (layout.ep_size != 1 || size != layout.tp_size) continue;
      const GroupLoads loads = group_loads(moe_, moe_.expert_tokens, size);
      for (std::size_t rank = 0; rank < static_cast<std::size_t>(size); ++rank)
        add_layer_rank(loads, rank, [&](const std::string& layer, double load) {
          out_.add(Metric::moe_what_if_layer_rank_tokens, {ep_size, layer, std::to_string(rank)},
                   load);
        });
    }
  }

 private:
  template <typename Add>
  void add_layer_rank(const GroupLoads& loads, std::size_t group, Add add) {
    for (const LayerGroup& layers : layers_) {
      double load = 0;
      for (std::size_t i = layers.first; i <= layers.last; ++i) load += number(loads[i][group]);
      add(layers.name, load);
    }
  }

  // Of a table by rank: one rank's, over all layers.
  double column(const std::vector<std::uint64_t>& table, std::size_t group) const {
    double sum = 0;
    for (std::size_t at = group; at < table.size(); at += moe_.step_ranks) sum += number(table[at]);
    return sum;
  }

  Exposition& out_;
  const MoeStats& moe_;
  const MoeTracker& tracker_;
  const std::vector<LayerGroup> layers_;
};

std::optional<MoeLayout> layout_of(const RankStats& rank, const HostView& view) {
  return moe_layout(rank, view.config ? view.config->moe.ep_size : std::nullopt);
}

}  // namespace

// All ranks of a tensor-parallel engine route the same tokens: the lowest living one speaks for
// all.
const RankStats* moe_spokesman(const HostView& view) {
  for (const auto& [rank, stats] : living_ranks(view))
    if (stats->moe && stats->moe->steps > 0 && !stats->moe->expert_tokens.empty()) return stats;
  return nullptr;
}

void follow_moe(MoeTracker& tracker, const HostView& view,
                std::chrono::steady_clock::time_point now) {
  if (const RankStats* rank = moe_spokesman(view)) tracker.take(*rank, layout_of(*rank, view), now);
}

void add_moe_metrics(Exposition& out, const HostView& view, const MoeTracker& tracker) {
  const RankStats* rank = moe_spokesman(view);
  if (rank == nullptr) return;
  const auto layout = layout_of(*rank, view);
  MoeSeries series(out, *rank->moe, tracker, layout ? layout->tp_size : 1);
  series.add_counters();
  if (!layout) return;
  series.add_layout(*layout);
  if (layout->placed) {
    series.add_rank_load(*layout);
    series.add_peaks(*layout);
  }
  series.add_steps(*layout);
  series.add_what_if(*layout);
}

void add_expert_metrics(Exposition& out, const MoeStats& moe) {
  for (std::size_t layer = 0; layer < moe.layers; ++layer)
    for (std::size_t expert = 0; expert < moe.experts; ++expert)
      out.add(Metric::moe_expert_tokens,
              {std::to_string(moe.first_layer + layer), std::to_string(expert)},
              number(moe.expert_tokens[layer * moe.experts + expert]));
}

}  // namespace kdtree
