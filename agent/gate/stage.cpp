// SPDX-License-Identifier: Apache-2.0
#include "agent/gate/stage.h"

#include <array>

namespace kdtree {
namespace {

struct Mark {
  std::string_view text;
  std::string_view also;  // must follow somewhere after `text`
  Stage stage;
};

// Wording of sglang/srt/model_executor/model_runner.py,
// model_runner_components/cuda_graph_setup.py, mem_cache/ and entrypoints/http_server.py, 0.5.17.
constexpr std::array kMarks = {
    Mark{"The server is fired up and ready to roll!", "", Stage::ready},
    Mark{"Capture ", " end.", Stage::warm_up},
    Mark{"Capture ", " begin.", Stage::capture},
    Mark{"Capturing batches", "", Stage::capture},
    Mark{"KV Cache is allocated", "", Stage::memory},
    Mark{"Load weight end.", "", Stage::memory},
    Mark{"Load weight begin.", "", Stage::loading},
    Mark{"Loading safetensors checkpoint shards", "", Stage::loading},
    Mark{"Init torch distributed begin.", "", Stage::joining},
};

}  // namespace

std::string_view stage_name(Stage stage) {
  switch (stage) {
    case Stage::starting:
      return "starting";
    case Stage::joining:
      return "joining ranks";
    case Stage::loading:
      return "loading weights";
    case Stage::memory:
      return "memory pool";
    case Stage::capture:
      return "graph capture";
    case Stage::warm_up:
      return "warm-up";
    case Stage::ready:
      return "ready";
  }
  return "?";
}

std::optional<Stage> stage_of_line(std::string_view line) {
  for (const auto& mark : kMarks) {
    auto at = line.find(mark.text);
    if (at != line.npos && line.find(mark.also, at + mark.text.size()) != line.npos)
      return mark.stage;
  }
  return std::nullopt;
}

}  // namespace kdtree
