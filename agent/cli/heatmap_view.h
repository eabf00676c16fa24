// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <deque>
#include <map>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <vector>

#include "agent/metrics/scrape_text.h"

namespace kdtree {

// What one scrape of the agent says about balance. nullopt = unknown, drawn as such.
struct HeatSample {
  struct Gpu {
    std::optional<double> utilization;  // 0 to 1
    std::string trouble;                // "" = up; else lost, hung, …
  };
  std::map<int, Gpu> gpus;
  std::map<int, double> rank_tokens;  // assignments since the engine began
  std::string ep_size;                // "" = no routing is observed
  std::optional<double> balance;      // kdtree_moe_balance_ratio
};
HeatSample heat_sample(const std::vector<Series>& scrape);

enum class HeatStyle { plain, blocks };  // plain: ASCII without colour

// The samples so far, oldest first, and the picture of them.
class Heatmap {
 public:
  explicit Heatmap(std::size_t columns) : columns_(columns) {}
  void add(HeatSample sample);

  // One row a GPU (utilisation over time, now at the right), then one a rank (load relative to the
  // mean of all ranks: of each interval, or since the engine began while there is only one sample).
  std::vector<std::string> draw(HeatStyle style) const;

  // The last sample.
  nlohmann::ordered_json json(const std::string& source) const;

 private:
  // Load of each rank relative to the mean, between sample i - 1 and i; empty: nothing was routed.
  std::map<int, double> load_at(std::size_t i) const;

  std::size_t columns_;
  std::deque<HeatSample> samples_;
};

}  // namespace kdtree
