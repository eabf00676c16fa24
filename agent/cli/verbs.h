// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <CLI/CLI.hpp>
#include <chrono>
#include <functional>
#include <string>

#include "agent/cli/context.h"

namespace kdtree {

// Options of every verb that changes the host.
struct ChangeOptions {
  bool dry_run = false;     // print the plan, change nothing, exit 0
  bool yes = false;         // don't ask
  std::string plan;         // hash that the plan must have; "" = any
  long long timeout_s = 0;  // 0 = the configuration's deadlines.healthy_s
};
void add_change_options(CLI::App& verb, ChangeOptions& options);

// `validator` without its name in --help.
CLI::Validator quiet(CLI::Validator validator);

// Refuses what is none of `words`.
CLI::Validator one_of(std::vector<std::string> words);

// Adds a verb whose body runs after parsing; what it returns becomes the exit status.
CLI::App& add_verb(CLI::App& app, Context& context, const std::string& name,
                   const std::string& summary, std::function<Result<ExitCode>()> body);

// One verb, one file. In the order of --help and of the man page.
void setup_doctor(CLI::App& app, Context& context);
void setup_plan(CLI::App& app, Context& context);
void setup_deploy(CLI::App& app, Context& context);
void setup_mode(CLI::App& app, Context& context);
void setup_verdict(CLI::App& app, Context& context);
void setup_status(CLI::App& app, Context& context);
void setup_rollback(CLI::App& app, Context& context);
void setup_history(CLI::App& app, Context& context);
void setup_selftest(CLI::App& app, Context& context);
void setup_bench(CLI::App& app, Context& context);
void setup_heatmap(CLI::App& app, Context& context);
void setup_uninstall(CLI::App& app, Context& context);
void setup_recover(CLI::App& app, Context& context);

}  // namespace kdtree
