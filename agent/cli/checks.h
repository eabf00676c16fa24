// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "agent/cli/collect_facts.h"
#include "agent/cli/context.h"
#include "agent/config/config.h"

// What `kdtreectl doctor` looks at. Each check_* function adds its lines and changes nothing.
namespace kdtree {

enum class CheckLevel { ok, warning, failure, skipped };

struct Check {
  std::string name;  // "engine unit"
  CheckLevel level = CheckLevel::ok;
  std::string text;  // what was seen, one line
  std::string next;  // what to do; "" with ok
};

class CheckList {
 public:
  void ok(std::string name, std::string text) {
    add({std::move(name), CheckLevel::ok, std::move(text), {}});
  }
  void warn(std::string name, std::string text, std::string next) {
    add({std::move(name), CheckLevel::warning, std::move(text), std::move(next)});
  }
  void bad(std::string name, std::string text, std::string next) {
    add({std::move(name), CheckLevel::failure, std::move(text), std::move(next)});
  }
  void skip(std::string name, std::string why, std::string next = {}) {
    add({std::move(name), CheckLevel::skipped, std::move(why), std::move(next)});
  }
  void bad(std::string name, const Error& error) { bad(std::move(name), error.what, error.hint); }

  const std::vector<Check>& checks() const { return checks_; }
  bool has(CheckLevel level) const;

 private:
  void add(Check check) { checks_.push_back(std::move(check)); }
  std::vector<Check> checks_;
};

// GPUs, driver, compiler, build tools, disk, installed sources.
void check_host(Context& context, const Config& config, const Facts& facts, CheckList& list);
// The engine's unit: can its command be changed, does its sandbox let kdtree in, do its time limits
// fit.
void check_unit(const Config& config, const Facts& facts, CheckList& list);
// The engine itself: its Python, whether the patch binds, other start-up hooks, its health.
void check_engine(Context& context, const Config& config, const Facts& facts, CheckList& list);
// What is deployed: the release's files, drift, ranks, the agent, the folder for stats files.
void check_deployed(Context& context, const Config& config, const Facts& facts, CheckList& list);

}  // namespace kdtree
