// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "agent/util/result.h"

namespace kdtree {

// What /live.json of the agent says; the landing page draws the same. nullopt = unknown, drawn as
// such.
struct HeatPicture {
  struct Gpu {
    int index = 0;
    std::string state;                           // "ok", "lost", …; "" = unknown
    std::optional<double> utilization;           // 0 to 1
    std::vector<std::optional<double>> history;  // 0 to 1, now at the end
  };
  struct Moe {
    int ep_size = 1, shown_ep_size = 1;
    bool what_if = false;
    std::optional<double> peak, expected_peak;  // fullest rank over the mean, 30 s as a whole
    std::optional<double> step_peak, expected_step_peak, tokens_per_step;  // of each step by itself
    std::vector<std::string> layers;
    std::vector<std::vector<std::optional<double>>> load;  // [layers][ranks], relative to the mean
  };
  std::string failure;  // why NVML can't be used; "" = it can
  double step_seconds = 0;
  std::vector<Gpu> gpus;
  std::optional<Moe> moe;  // nullopt: no routing is observed
};

// Errors: refused: not what the agent says.
Result<HeatPicture> heat_picture(std::string_view live_json);

enum class HeatStyle { plain, colours };  // plain: ASCII without colour

// One row a GPU (utilisation over time, now at the right), then one a rank (load of each layer or
// group of layers). `columns`: of a row's cells, at least 10.
std::vector<std::string> draw(const HeatPicture& picture, HeatStyle style, std::size_t columns);

nlohmann::ordered_json heat_json(const HeatPicture& picture, const std::string& source);

}  // namespace kdtree
