// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <gtest/gtest.h>

#include "agent/plan/engine_unit.h"
#include "agent/plan/journal.h"
#include "agent/plan/transaction.h"
#include "agent/util/atomic_file.h"
#include "plan_host.h"

namespace kdtree::test {

// A host on which r1 is deployed in mode off, files and all.
class Transaction : public ::testing::Test {
 protected:
  void SetUp() override {
    manager.state.invocation_id = "a";
    manager.state.active_state = "active";
    ports.services = &manager;
    ports.gate = [this](const GateCall& call) {
      gates.push_back(call);
      return on_gate ? on_gate(call) : Status{};
    };
  }

  // r1 in force in mode off; facts.files says what the folder holds.
  Facts install() {
    const Deployed off{"r1", Mode::off, false};
    const std::string text = make_engine_unit(facts(), config(), off)->text;
    Facts f = deployed_facts(off, text);
    folder.write(kDropIn + 1, text);
    EXPECT_TRUE(make_directories(folder / "opt/kdtree"));
    EXPECT_TRUE(replace_symlink(folder / "opt/kdtree/current", "/opt/kdtree/releases/r1"));
    EXPECT_TRUE(write_state(folder.root(), f.state));
    return f;
  }

  Plan plan_of(const Facts& f, const Wish& w, const Config& c = config()) {
    auto plan = make_plan(f, c, w);
    EXPECT_TRUE(plan) << (plan ? "" : plan.error().what);
    return plan ? *plan : Plan{};
  }

  TransactionResult applied(const Plan& plan) {
    auto result = apply(folder.root(), plan, ports);
    EXPECT_TRUE(result) << (result ? "" : result.error().what);
    return result ? *result : TransactionResult{};
  }

  // As if kdtreectl had been killed after its first record.
  Result<Journal> cut_off(const Facts& f, const Plan& plan) {
    return Journal::begin(folder.root(), {{"time", "2026-01-01T00:00:00Z"},
                                          {"boot_id", "boot-1"},
                                          {"state", to_json(f.state)},
                                          {"plan", to_json(plan)}});
  }

  // As if it had been killed while it started the engine without kdtree.
  void cut_off_in_fallback(const Facts& f, const Plan& plan) {
    auto journal = cut_off(f, plan);
    ASSERT_TRUE(journal);
    for (std::size_t i = 0; i < plan.steps.size(); ++i)
      ASSERT_TRUE(journal->add({{"is", "start"}, {"step", i}}));
    ASSERT_TRUE(journal->add({{"is", "undo"}}));
    ASSERT_TRUE(journal->add({{"is", "fallback"}}));
  }

  State state() { return read_state(folder.root()).value(); }
  bool journal_left() { return recovery_needed(folder.root()).value(); }

  PlanFolder folder;
  RecordingManager manager;
  TransactionPorts ports;
  std::vector<GateCall> gates;
  std::function<Status(const GateCall&)> on_gate;
};

inline const Wish kDeploy = wish(Verb::deploy, "r1", Mode::off);
inline const Wish kValidate = wish(Verb::mode, "r1", Mode::validate);

// Going back fails: the old state's ranks never come, the plain engine does.
inline Status only_plain(const GateCall& call) {
  if (call.expect.ranks > 0) return fail(ExitCode::rolled_back, "broken");
  return {};
}

}  // namespace kdtree::test
