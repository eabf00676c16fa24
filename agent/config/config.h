// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "agent/config/mode.h"
#include "agent/util/result.h"
#include "agent/util/root.h"

// /etc/kdtree/kdtree.json: JSON with // and /* */ comments. Unknown keys are refused with their
// path and the nearest known one. Field names below are the keys.
namespace kdtree {

struct EngineConfig {
  std::string unit;        // required, "sglang.service"
  std::string python;      // required, absolute path of the engine's python3
  std::string health_url;  // required, http://127.0.0.1:30000/health
  int ranks = 0;           // required, 1..64: how many processes must report
  // Given: kdtree writes the whole unit; else the unit exists and gets a drop-in.
  std::vector<std::string> command;
  std::string user;                                // "" = root's default of systemd
  std::map<std::string, std::string> environment;  // only with `command`
  bool whole_unit() const { return !command.empty(); }
};

enum class KernelDevice { cuda, cpu };

struct KernelConfig {
  KernelDevice device = KernelDevice::cuda;
  std::vector<std::string> archs;  // "90", "120"; empty = those of the GPUs present
  std::string cuda_home;           // empty = searched
  std::string nsplit;              // empty = chosen on the device; else a positive integer
  bool defrag_sort = true;
};

// What a mode changes in the engine's command line.
struct ModeConfig {
  std::optional<double> mem_fraction_static;  // (0, 1)
  std::vector<std::string> add_flags;         // {"--x", "1", "--y"}
  std::vector<std::string> remove_flags;      // {"--z"}; a following value goes with it
  bool operator==(const ModeConfig&) const = default;
};

struct DeadlineConfig {
  std::chrono::seconds healthy_s{1800};
  std::chrono::seconds stop_s{300};
  std::chrono::seconds stable_s{10};
  // Before a restart: SIGTERM to the engine's main process alone, which lets SGLang finish the
  // requests that run; 0 = the unit's own way of stopping at once.
  std::chrono::seconds drain_s{30};
};

// A request whose answer is known: asked of an engine with kdtree before a change counts as good.
struct GoldenPrompt {
  std::string url;      // http://127.0.0.1:30000/generate
  std::string request;  // JSON text of what is posted; greedy sampling, so that the answer is fixed
  std::string expect;   // what the answer's body must contain
};

struct GateConfig {
  std::optional<GoldenPrompt> golden;
  std::uint64_t gpu_free_mib = 0;  // that every GPU of a rank must have left; 0 = not looked at
};

struct ValidateConfig {
  std::uint64_t min_compares = 1000;
  double max_ulp = 4;     // in units of the output type's last place, at its row's magnitude
  double mean_ulp = 0.5;  // the same, mean over a request
};

struct AgentConfig {
  std::string listen = "127.0.0.1:9817";  // host:port, or unix:/path
  // Absolute path of a web configuration in prometheus/exporter-toolkit's format (TLS, passwords);
  // "" = none. Needed to listen beyond loopback.
  std::string web_config;
};

struct MoeConfig {
  std::optional<int> ep_size;
};

struct Config {
  EngineConfig engine;
  KernelConfig kernel;
  std::map<Mode, ModeConfig> modes;
  DeadlineConfig deadlines;
  GateConfig gate;
  ValidateConfig validate;
  AgentConfig agent;
  MoeConfig moe;
  std::string document;  // all that was given, as JSON text that parse_config takes

  const ModeConfig& mode(Mode which) const;  // an empty one where the config has none
};

constexpr std::string_view to_string(KernelDevice device) {
  return device == KernelDevice::cuda ? "cuda" : "cpu";
}

// `where` names the text in messages. Errors: usage.
Result<Config> parse_config(std::string_view text, const std::string& where);

// Reads paths::kConfig; must be owned by root and not writable by others. Errors: usage, with what
// to do.
Result<Config> load_config(const Root& root);

}  // namespace kdtree
