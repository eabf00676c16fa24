// SPDX-License-Identifier: Apache-2.0
#include "agent/cli/heatmap_view.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <nlohmann/json.hpp>
#include <set>
#include <string_view>

namespace kdtree {
namespace {

using Json = nlohmann::ordered_json;

constexpr std::string_view kPlain = " .:-=+*#%@";
constexpr std::array<std::string_view, 9> kBlocks{" ", "▁", "▂", "▃", "▄", "▅", "▆", "▇", "█"};
constexpr std::array<int, 9> kColours{236, 24, 30, 36, 71, 142, 178, 172, 160};

// One cell; `value` 0 to 1, nullopt = unknown.
std::string cell(const std::optional<double>& value, HeatStyle style) {
  if (!value) return style == HeatStyle::plain ? "?" : "\x1b[2m·\x1b[0m";
  const double level = std::clamp(*value, 0.0, 1.0);
  if (style == HeatStyle::plain)
    return std::string(1, kPlain[static_cast<std::size_t>(std::lround(level * 9))]);
  const auto step = static_cast<std::size_t>(std::lround(level * 8));
  return "\x1b[38;5;" + std::to_string(kColours[step]) + "m" + std::string(kBlocks[step]) +
         "\x1b[0m";
}

std::string fixed(const char* format, double value) {
  std::array<char, 32> text{};
  std::snprintf(text.data(), text.size(), format, value);
  return text.data();
}

int index_of(const std::string& label) {
  return label.empty() ? -1 : static_cast<int>(std::strtol(label.c_str(), nullptr, 10));
}

}  // namespace

HeatSample heat_sample(const std::vector<Series>& scrape) {
  HeatSample sample;
  for (const Series& series : scrape) {
    const int gpu = index_of(series.label("gpu"));
    if (series.name == "kdtree_gpu_up" && gpu >= 0) {
      sample.gpus.try_emplace(gpu);
    } else if (series.name == "kdtree_gpu_utilization_ratio" && gpu >= 0) {
      sample.gpus[gpu].utilization = series.value;
    } else if (series.name == "kdtree_gpu_failure_info" && gpu >= 0) {
      sample.gpus[gpu].trouble = series.label("reason");
    } else if (series.name == "kdtree_moe_rank_tokens_total") {
      sample.rank_tokens[index_of(series.label("moe_rank"))] = series.value;
    } else if (series.name == "kdtree_moe_layout_info") {
      sample.ep_size = series.label("ep_size");
    } else if (series.name == "kdtree_moe_balance_ratio") {
      sample.balance = series.value;
    }
  }
  return sample;
}

void Heatmap::add(HeatSample sample) {
  samples_.push_back(std::move(sample));
  if (samples_.size() > columns_ + 1) samples_.pop_front();
}

std::map<int, double> Heatmap::load_at(std::size_t i) const {
  std::map<int, double> load = samples_[i].rank_tokens;
  if (i > 0)
    for (auto& [rank, tokens] : load) {
      const auto before = samples_[i - 1].rank_tokens.find(rank);
      if (before == samples_[i - 1].rank_tokens.end() || before->second > tokens) return {};
      tokens -= before->second;
    }
  double sum = 0;
  for (const auto& [rank, tokens] : load) sum += tokens;
  if (sum <= 0) return {};
  for (auto& [rank, tokens] : load) tokens /= sum / static_cast<double>(load.size());
  return load;
}

std::vector<std::string> Heatmap::draw(HeatStyle style) const {
  std::vector<std::string> lines;
  if (samples_.empty()) return lines;
  const HeatSample& last = samples_.back();
  const std::size_t first = samples_.size() > 1 ? 1 : 0;  // the first has no interval before it

  lines.push_back("GPU utilisation (0 to 100 %)");
  if (last.gpus.empty()) lines.push_back("  no GPU is seen");
  for (const auto& [index, gpu] : last.gpus) {
    std::string line = "  gpu " + std::to_string(index) + "  ";
    for (std::size_t i = first; i < samples_.size(); ++i) {
      const auto found = samples_[i].gpus.find(index);
      line +=
          cell(found == samples_[i].gpus.end() ? std::nullopt : found->second.utilization, style);
    }
    if (gpu.utilization)
      line += fixed("  %3.0f %%", *gpu.utilization * 100);
    else
      line += "  " + (gpu.trouble.empty() ? "unknown" : gpu.trouble);
    lines.push_back(std::move(line));
  }

  lines.emplace_back();
  if (last.rank_tokens.empty()) {
    lines.push_back(last.ep_size.empty()
                        ? "Expert load: no routing is observed"
                        : "Expert load: which rank holds which expert is not known");
    return lines;
  }
  lines.push_back("Expert load of a rank (1.00 = mean" +
                  std::string(first == 0 ? ", since the engine began)" : ", each interval)"));
  if (last.ep_size == "1")
    lines.push_back("  EP 1: every rank holds a slice of each expert, even by construction");
  std::vector<std::map<int, double>> loads;
  for (std::size_t i = first; i < samples_.size(); ++i) loads.push_back(load_at(i));
  for (const auto& [rank, tokens] : last.rank_tokens) {
    std::string line = "  rank " + std::to_string(rank) + " ";
    for (const auto& load : loads) {
      const auto found = load.find(rank);
      line += cell(found == load.end() ? std::nullopt : std::optional(found->second / 2), style);
    }
    const auto now = loads.back().find(rank);
    line += now == loads.back().end() ? "  idle" : fixed("  %.2f", now->second);
    lines.push_back(std::move(line));
  }
  if (last.balance)
    lines.push_back("  balance of the last 30 s: " + fixed("%.2f", *last.balance) + " (1 = even)");
  return lines;
}

Json Heatmap::json(const std::string& source) const {
  Json gpus = Json::array();
  Json ranks = Json::array();
  const HeatSample& last = samples_.back();
  for (const auto& [index, gpu] : last.gpus)
    gpus.push_back({{"gpu", index},
                    {"utilization", gpu.utilization ? Json(*gpu.utilization) : Json(nullptr)},
                    {"trouble", gpu.trouble.empty() ? Json(nullptr) : Json(gpu.trouble)}});
  const auto load = load_at(samples_.size() - 1);
  for (const auto& [rank, tokens] : last.rank_tokens) {
    const auto found = load.find(rank);
    ranks.push_back({{"moe_rank", rank},
                     {"tokens", tokens},
                     {"load", found == load.end() ? Json(nullptr) : Json(found->second)}});
  }
  return {{"source", source},
          {"gpus", gpus},
          {"moe",
           {{"ep_size", last.ep_size.empty() ? Json(nullptr) : Json(index_of(last.ep_size))},
            {"balance", last.balance ? Json(*last.balance) : Json(nullptr)},
            {"ranks", ranks}}}};
}

}  // namespace kdtree
