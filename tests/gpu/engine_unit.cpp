// SPDX-License-Identifier: Apache-2.0
// The drop-in that `kdtreectl deploy` and `mode` would write, by the same function, on a GPU host
// without systemd; and the state file that goes with it.
//   gpu_engine_unit CONFIG UNIT_FILE RELEASE MODE [STATE_FILE]
#include "agent/plan/engine_unit.h"

#include <cstdio>
#include <exception>
#include <fstream>
#include <iostream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <string>

#include "agent/config/config.h"

namespace {

std::string read_all(const char* path) {
  std::ifstream file(path);
  return {std::istreambuf_iterator<char>(file), {}};
}

int failed(const kdtree::Error& error) {
  std::cerr << "gpu_engine_unit: " << error.what << '\n';
  return static_cast<int>(error.code);
}

int run(int argc, char** argv) {
  if (argc < 5) {
    std::cerr << "gpu_engine_unit CONFIG UNIT_FILE RELEASE MODE [STATE_FILE]\n";
    return 2;
  }
  const auto config = kdtree::parse_config(read_all(argv[1]), argv[1]);
  if (!config) return failed(config.error());
  const auto mode = kdtree::parse_mode(argv[4]);
  if (!mode) {
    std::cerr << "gpu_engine_unit: " << argv[4] << " is no mode\n";
    return 2;
  }
  kdtree::Facts facts;
  facts.unit.state.name = config->engine.unit;
  facts.unit.state.load_state = "loaded";
  facts.unit.state.fragment_path = "/etc/systemd/system/" + config->engine.unit;
  facts.unit.files = {{facts.unit.state.fragment_path, read_all(argv[2])}};

  kdtree::State state;
  state.current = {argv[3], *mode, false};
  state.good = state.current;
  const auto unit = kdtree::make_engine_unit(facts, *config, state.current);
  if (!unit) return failed(unit.error());
  std::cout << unit->text;
  if (argc > 5) std::ofstream(argv[5]) << kdtree::to_json(state).dump(2) << '\n';
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  try {
    return run(argc, argv);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "gpu_engine_unit: %s\n", error.what());
    return 1;
  }
}
