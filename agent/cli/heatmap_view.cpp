// SPDX-License-Identifier: Apache-2.0
#include "agent/cli/heatmap_view.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <numeric>

#include "agent/cli/output.h"
#include "agent/util/or_null.h"

namespace kdtree {
namespace {

using Json = nlohmann::json;
using Cells = std::vector<std::optional<double>>;

constexpr std::string_view kPlainHeat = " .:-=+*#%@";
constexpr std::string_view kPlainLoad = "_.-=+*#";  // half the mean … the mean … twice
constexpr std::array<std::string_view, 9> kBlocks{" ", "▁", "▂", "▃", "▄", "▅", "▆", "▇", "█"};
// Of the 256 colours: dark to bright, and blue over grey to orange.
constexpr std::array<int, 9> kHeat{238, 23, 24, 30, 37, 43, 79, 122, 158};
constexpr std::array<int, 7> kLoad{25, 67, 109, 240, 180, 173, 166};

std::string fixed(const char* format, double value) {
  std::array<char, 32> text{};
  std::snprintf(text.data(), text.size(), format, value);
  return text.data();
}

std::string coloured(int colour, std::string_view text) {
  return "\x1b[38;5;" + std::to_string(colour) + "m" + std::string(text) + "\x1b[0m";
}

std::size_t step_of(double part, std::size_t steps) {
  return static_cast<std::size_t>(
      std::lround(std::clamp(part, 0.0, 1.0) * static_cast<double>(steps - 1)));
}

std::string unknown(HeatStyle style) { return style == HeatStyle::plain ? "?" : "\x1b[2m·\x1b[0m"; }

// `value` 0 to 1.
std::string heat_cell(const std::optional<double>& value, HeatStyle style) {
  if (!value) return unknown(style);
  if (style == HeatStyle::plain) return {kPlainHeat[step_of(*value, kPlainHeat.size())]};
  const auto step = step_of(*value, kBlocks.size());
  return coloured(kHeat[step], step == 0 ? "▁" : kBlocks[step]);
}

// `value` relative to the mean: half of it to twice, on a scale of logarithms.
std::string load_cell(const std::optional<double>& value, HeatStyle style) {
  if (!value) return unknown(style);
  const double part = (std::clamp(std::log2(std::max(*value, 1e-9)), -1.0, 1.0) + 1) / 2;
  if (style == HeatStyle::plain) return {kPlainLoad[step_of(part, kPlainLoad.size())]};
  return coloured(kLoad[step_of(part, kLoad.size())], "█");
}

std::optional<double> mean_of(const Cells& cells) {
  double sum = 0;
  int known = 0;
  for (const auto& cell : cells)
    if (cell) sum += *cell, ++known;
  return known > 0 ? std::optional(sum / known) : std::nullopt;
}

// So that no more than `columns` cells are drawn: neighbours share one, which is their mean.
Cells narrowed(const Cells& cells, std::size_t columns) {
  const std::size_t width = (cells.size() + columns - 1) / std::max<std::size_t>(columns, 1);
  if (width <= 1) return cells;
  Cells out;
  for (std::size_t first = 0; first < cells.size(); first += width)
    out.push_back(mean_of(
        {cells.begin() + static_cast<std::ptrdiff_t>(first),
         cells.begin() + static_cast<std::ptrdiff_t>(std::min(first + width, cells.size()))}));
  return out;
}

void draw_gpus(const HeatPicture& picture, HeatStyle style, std::size_t columns,
               std::vector<std::string>& lines) {
  const std::size_t cells =
      picture.gpus.empty() ? 0 : std::min(columns, picture.gpus.front().history.size());
  std::string title = "GPU utilisation (0 to 100 %";
  if (cells > 0)
    title += ", last " + fixed("%.0f s", picture.step_seconds * static_cast<double>(cells));
  lines.push_back(title + ")");
  if (!picture.failure.empty()) lines.push_back("  NVML can't be used: " + picture.failure);
  if (picture.gpus.empty()) lines.emplace_back("  no GPU is seen");
  for (const HeatPicture::Gpu& gpu : picture.gpus) {
    std::string line = "  gpu " + std::to_string(gpu.index) + "  ";
    const std::size_t shown = std::min(columns, gpu.history.size());
    for (std::size_t i = gpu.history.size() - shown; i < gpu.history.size(); ++i)
      line += heat_cell(gpu.history[i], style);
    if (gpu.utilization)
      line += fixed("  %3.0f %%", *gpu.utilization * 100);
    else
      line += "  " + (gpu.state.empty() || gpu.state == "ok" ? "unknown" : gpu.state);
    lines.push_back(std::move(line));
  }
}

void draw_moe(const HeatPicture::Moe& moe, HeatStyle style, std::size_t columns,
              std::vector<std::string>& lines) {
  std::string title = "Expert load, each layer's mean = 1";
  if (!moe.layers.empty()) title += ", layer " + moe.layers.front() + " to " + moe.layers.back();
  lines.push_back(title + " (last 30 s)");
  if (moe.what_if)
    lines.push_back(
        "  EP 1: every rank holds a slice of each expert, even by construction; shown is "
        "what EP " +
        std::to_string(moe.shown_ep_size) + " would give");
  for (int rank = 0; rank < moe.shown_ep_size; ++rank) {
    Cells cells;
    for (const auto& layer : moe.load) cells.push_back(layer[static_cast<std::size_t>(rank)]);
    std::string line = (moe.what_if ? "  part " : "  rank ") + std::to_string(rank) + " ";
    for (const auto& cell : narrowed(cells, columns)) line += load_cell(cell, style);
    const auto mean = mean_of(cells);
    line += mean ? fixed("  %.2f", *mean) : "  idle";
    lines.push_back(std::move(line));
  }
  const auto add = [&](const char* of, const auto& peak, const auto& expected) {
    if (!peak) return;
    std::string line = std::string("  fullest rank ") + of + fixed(": %.2f of the mean", *peak);
    if (expected) line += fixed("; uniform routing: %.2f", *expected);
    lines.push_back(std::move(line));
  };
  add("of a step", moe.step_peak, moe.expected_step_peak);
  add("of all steps together, as drawn", moe.peak, moe.expected_peak);
  if (moe.tokens_per_step) lines.push_back(fixed("  %.1f tokens a step", *moe.tokens_per_step));
}

std::optional<double> number_or_none(const Json& value) {
  return value.is_number() ? std::optional(value.get<double>()) : std::nullopt;
}

std::string text_or_none(const Json& value) {
  return value.is_string() ? without_controls(value.get<std::string>(), false) : std::string();
}

Cells cells_of(const Json& values) {
  Cells cells;
  for (const Json& value : values) cells.push_back(number_or_none(value));
  return cells;
}

HeatPicture::Moe moe_of(const Json& live) {
  HeatPicture::Moe moe;
  moe.ep_size = live.at("ep_size");
  moe.shown_ep_size = live.at("shown_ep_size");
  moe.what_if = live.at("what_if");
  moe.peak = number_or_none(live.at("peak"));
  moe.expected_peak = number_or_none(live.at("expected_peak"));
  moe.step_peak = number_or_none(live.value("step_peak", Json()));
  moe.expected_step_peak = number_or_none(live.value("expected_step_peak", Json()));
  moe.tokens_per_step = number_or_none(live.at("tokens_per_step"));
  moe.layers = live.at("layers").get<std::vector<std::string>>();
  for (const Json& layer : live.at("load")) {
    moe.load.push_back(cells_of(layer));
    if (moe.load.back().size() != static_cast<std::size_t>(moe.shown_ep_size))
      throw std::out_of_range("load");
  }
  return moe;
}

HeatPicture picture_of(const Json& live) {
  HeatPicture picture;
  const Json& gpus = live.at("gpus");
  picture.failure = text_or_none(gpus.at("failure"));
  picture.step_seconds = gpus.at("step_seconds");
  for (const Json& row : gpus.at("rows"))
    picture.gpus.push_back({row.at("gpu"), text_or_none(row.at("state")),
                            number_or_none(row.at("utilization")), cells_of(row.at("history"))});
  if (!live.at("moe").is_null()) picture.moe = moe_of(live.at("moe"));
  return picture;
}

}  // namespace

Result<HeatPicture> heat_picture(std::string_view live_json) {
  try {
    return picture_of(Json::parse(live_json));
  } catch (const std::exception&) {
    return fail(ExitCode::refused, "that is not what kdtree-agent says in /live.json",
                "is it kdtree-agent of this version?");
  }
}

std::vector<std::string> draw(const HeatPicture& picture, HeatStyle style, std::size_t columns) {
  std::vector<std::string> lines;
  draw_gpus(picture, style, columns, lines);
  lines.emplace_back();
  if (picture.moe)
    draw_moe(*picture.moe, style, columns, lines);
  else
    lines.emplace_back(
        "Expert load: no routing is observed, or nothing was routed in the last 30 s");
  return lines;
}

nlohmann::ordered_json heat_json(const HeatPicture& picture, const std::string& source) {
  nlohmann::ordered_json gpus = nlohmann::ordered_json::array();
  for (const HeatPicture::Gpu& gpu : picture.gpus)
    gpus.push_back(
        {{"gpu", gpu.index},
         {"utilization", or_null(gpu.utilization)},
         {"trouble", gpu.state.empty() || gpu.state == "ok" ? nlohmann::ordered_json(nullptr)
                                                            : nlohmann::ordered_json(gpu.state)}});
  nlohmann::ordered_json moe = nullptr;
  if (picture.moe) {
    nlohmann::ordered_json load = nlohmann::ordered_json::array();
    for (const auto& layer : picture.moe->load) {
      nlohmann::ordered_json row = nlohmann::ordered_json::array();
      for (const auto& value : layer) row.push_back(or_null(value));
      load.push_back(std::move(row));
    }
    moe = {{"ep_size", picture.moe->ep_size},
           {"shown_ep_size", picture.moe->shown_ep_size},
           {"what_if", picture.moe->what_if},
           {"peak", or_null(picture.moe->peak)},
           {"expected_peak", or_null(picture.moe->expected_peak)},
           {"step_peak", or_null(picture.moe->step_peak)},
           {"expected_step_peak", or_null(picture.moe->expected_step_peak)},
           {"layers", picture.moe->layers},
           {"load", std::move(load)}};
  }
  return {{"source", source}, {"gpus", std::move(gpus)}, {"moe", std::move(moe)}};
}

}  // namespace kdtree
