// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <string>

#include "agent/util/result.h"
#include "agent/util/root.h"

namespace kdtree {

// The command line of kdtree-agent. What it doesn't say comes from /etc/kdtree/kdtree.json, where
// there is one.
struct AgentOptions {
  Root root;                              // --root
  std::optional<std::string> listen;      // --listen, instead of the configuration's
  std::optional<std::string> web_config;  // --web-config, instead of the configuration's; "" = none
  std::string nvml;       // --nvml path; empty = libnvidia-ml.so.1, found by the loader
  std::string stats_dir;  // --stats-dir; empty = paths::kStats under root
};

// What the command line asks for: to run with options, or to print `text` on stdout and exit with
// `code`.
struct AgentCommand {
  std::optional<AgentOptions> run;
  std::string text;
  ExitCode code = ExitCode::done;
};

// Errors: usage.
Result<AgentCommand> parse_agent_command(int argc, const char* const* argv);

}  // namespace kdtree
