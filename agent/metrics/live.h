// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <deque>
#include <map>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <vector>

#include "agent/metrics/host_view.h"
#include "agent/metrics/moe_tracker.h"
#include "agent/nvml/gpu_sampler.h"

// What the landing page and `kdtreectl heatmap` draw: /live.json, the present state and the last
// minutes of it. As everywhere: what is not known is null.
namespace kdtree {

// Mean utilisation of each GPU over the last kColumns steps.
class GpuHistory {
 public:
  static constexpr std::size_t kColumns = 150;
  static constexpr std::chrono::seconds kStep{2};

  // To be called at least each kStep; a call before the next step is due changes nothing.
  void add(const NvmlSnapshot& nvml, std::chrono::steady_clock::time_point now);

  // Of the GPU, oldest first, kColumns of them.
  std::vector<std::optional<double>> row(const std::string& uuid) const;

 private:
  struct Row {
    std::chrono::duration<double> busy{0}, observed{0};
    std::deque<std::optional<double>> columns;
  };
  std::optional<std::chrono::steady_clock::time_point> last_;
  std::map<std::string, Row> rows_;
};

// Load of each rank in each group of layers over the last 30 s, relative to the group's mean.
struct MoePicture {
  int ep_size = 1, tp_size = 1;
  std::uint32_t experts = 0, top_k = 0;
  int shown_ep_size = 1;  // whose load this is
  bool what_if = false;   // shown_ep_size is not how the engine lies
  std::vector<std::string> layers;
  std::vector<std::vector<std::optional<double>>> load;  // [layers][shown ranks]; nullopt: no token
  std::optional<PeakLoad> peak;                          // of the last 30 s as a whole
  std::optional<PeakLoad> step_peak;  // of each step by itself; nullopt: not counted for this EP
  std::optional<double> tokens_per_step;
};
// nullopt: no rank observes routing, the layout is not known, or there is nothing to compare with
// yet.
std::optional<MoePicture> moe_picture(const HostView& view, const MoeTracker& tracker);

// Everything but the GPUs, as of one look at the files.
nlohmann::ordered_json live_host(const HostView& view, const std::optional<MoePicture>& moe);

nlohmann::ordered_json live_gpus(const NvmlSnapshot& nvml, const GpuHistory& history);

}  // namespace kdtree
