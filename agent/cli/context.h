// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "agent/cli/output.h"
#include "agent/config/config.h"
#include "agent/systemd/service_manager.h"
#include "agent/util/result.h"
#include "agent/util/root.h"

namespace kdtree {

// What every verb is given: where the host's files are, how to talk, and the two outside things
// that most verbs need, each made on first use.
class Context {
 public:
  Root root;
  Output out;
  std::vector<std::string> argv;              // as the program was called
  Result<ExitCode> outcome = ExitCode::done;  // stored by the verb that ran, read by main()

  // The checked configuration of this host; the same object every time.
  Result<const Config*> config();
  // For looking and for the ways back: config(), or, where the file is missing or broken, what the
  // last change went by (state.json); that is said in one line, once. Errors: config()'s, where
  // nothing is recorded.
  Result<const Config*> config_or_recorded();
  // The running systemd. `--root` moves files only: under another root there is no systemd to talk
  // to, and this is an error that says so.
  Result<ServiceManager*> services(BusRoute route = BusRoute::normal);
  // Refuses (ExitCode::refused) unless run by root or under another root than "/".
  Status need_root(const std::string& verb) const;

  // For tests.
  void use(std::unique_ptr<ServiceManager> services) { services_ = std::move(services); }

 private:
  std::optional<Config> config_;
  std::optional<Config> recorded_;
  std::unique_ptr<ServiceManager> services_;
};

}  // namespace kdtree
