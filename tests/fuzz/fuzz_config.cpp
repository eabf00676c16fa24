// SPDX-License-Identifier: Apache-2.0
#include "agent/config/config.h"
#include "fuzz_input.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  const auto config = kdtree::parse_config(text, "/etc/kdtree/kdtree.json");
  if (!config) {
    fuzz::require_one_line(config.error());
    fuzz::require(config.error().code == kdtree::ExitCode::usage, "a wrong file is a usage error");
    return 0;
  }
  fuzz::require(!config->engine.unit.empty(), "a configuration names its unit");
  fuzz::require(config->engine.unit.find('/') == std::string::npos, "a unit is no path");
  fuzz::require(config->engine.unit.find('\n') == std::string::npos, "a unit is one line");
  fuzz::require(config->engine.python.starts_with('/'), "engine.python is absolute");
  fuzz::require(config->engine.ranks >= 1 && config->engine.ranks <= 64, "ranks are 1 to 64");
  fuzz::require(config->deadlines.healthy_s.count() >= 1, "there is time to get healthy");
  return 0;
}
