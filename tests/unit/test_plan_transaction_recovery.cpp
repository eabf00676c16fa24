// SPDX-License-Identifier: Apache-2.0
#include <sys/wait.h>
#include <unistd.h>

#include "agent/util/sha256.h"
#include "transaction_host.h"

namespace kdtree {
namespace {

using namespace test;

// Runs `change` in a child that is killed (no destructors, no cleanup) at the nth call of the
// service manager or gate.
void kill_at(PlanFolder& folder, const Plan& plan, int nth, const std::string& or_at = "") {
  const pid_t pid = ::fork();
  ASSERT_GE(pid, 0);
  if (pid == 0) {
    int calls = 0;
    RecordingManager manager;
    manager.state.invocation_id = "a";
    manager.state.active_state = "active";
    const auto count = [&] {
      if (++calls == nth) ::_exit(9);
      return Status{};
    };
    manager.on_call = [&](const std::string& call) {
      if (call == or_at) ::_exit(9);
      return count();
    };
    TransactionPorts ports;
    ports.services = &manager;
    ports.say = [&](const std::string&) { std::ignore = count(); };
    ports.gate = [&](const GateCall&) { return count(); };
    std::ignore = apply(folder.root(), plan, ports);
    ::_exit(0);
  }
  int status = 0;
  ASSERT_EQ(::waitpid(pid, &status, 0), pid);
  ASSERT_TRUE(WIFEXITED(status));
}

TEST_F(Transaction, KilledAnywhereItRecoversToTheOldOrTheNewState) {
  int recovered = 0;
  for (int nth = 1; nth <= 12; ++nth) {
    PlanFolder host;
    kill_at(host, plan_of(facts(), kDeploy), nth);
    const auto changed = host.contents();
    RecordingManager fresh;
    fresh.state.active_state = "active";
    TransactionPorts quiet;
    quiet.services = &fresh;
    const auto result = recover(host.root(), RecoverWhen::now, quiet);
    ASSERT_TRUE(result) << result.error().what;
    EXPECT_FALSE(recovery_needed(host.root()).value());
    const auto after = read_state(host.root()).value();
    EXPECT_FALSE(after.trial);
    if (result->found && !result->forward) {
      ++recovered;
      EXPECT_TRUE(after.current.none()) << nth;
      auto left = host.contents();
      EXPECT_EQ(left.size(), 1u) << "killed at call " << nth;
      EXPECT_EQ(after.history.back().result, "recovered");
    } else {
      EXPECT_EQ(after.current, (Deployed{"r1", Mode::off, false})) << nth;
      EXPECT_EQ(host.contents(), changed);
    }
  }
  EXPECT_GE(recovered, 5);
}

TEST_F(Transaction, KilledInItsCleanupTheChangeStays) {
  Facts f = facts();
  f.agent_unit = TextFile{"/usr/lib/systemd/system/kdtree-agent.service", ""};
  kill_at(folder, plan_of(f, kDeploy), 0, "start kdtree-agent.service");
  const auto changed = folder.contents();
  const auto result = recover(folder.root(), RecoverWhen::now, ports);
  ASSERT_TRUE(result);
  EXPECT_TRUE(result->forward);
  EXPECT_EQ(folder.contents(), changed);
  EXPECT_EQ(state().current, (Deployed{"r1", Mode::off, false}));
  EXPECT_EQ(manager.calls, (std::vector<std::string>{"enable kdtree-agent.service",
                                                     "start kdtree-agent.service"}));
}

TEST_F(Transaction, RecoveryAtBootWaitsForNoOtherUnit) {
  Facts f = facts();
  f.agent_unit = TextFile{"/usr/lib/systemd/system/kdtree-agent.service", ""};
  kill_at(folder, plan_of(f, kDeploy), 0, "start kdtree-agent.service");
  const auto result = recover(folder.root(), RecoverWhen::boot, ports);
  ASSERT_TRUE(result);
  EXPECT_TRUE(result->forward);
  EXPECT_EQ(manager.calls, (std::vector<std::string>{"enable kdtree-agent.service"}));
}

TEST_F(Transaction, RecoveryThatGoesForwardSaysWhatItCouldNotDo) {
  Facts f = facts();
  f.agent_unit = TextFile{"/usr/lib/systemd/system/kdtree-agent.service", ""};
  const auto plan = plan_of(f, kDeploy);
  auto journal = cut_off(f, plan);
  ASSERT_TRUE(journal);
  ASSERT_TRUE(journal->add({{"is", "passed"}}));
  manager.on_call = [](const std::string& call) -> Status {
    if (call == "start kdtree-agent.service") return fail(ExitCode::refused, "agent won't start");
    return {};
  };
  const auto result = recover(folder.root(), RecoverWhen::now, ports);
  ASSERT_TRUE(result);
  EXPECT_TRUE(result->forward);
  EXPECT_EQ(result->notes, std::vector<std::string>{"agent won't start"});
}

TEST_F(Transaction, CutOffAfterTheGateGoesForward) {
  const Facts f = install();
  const auto plan = plan_of(f, kValidate);
  ASSERT_EQ(applied(plan).code, ExitCode::done);
  // As if killed between "passed" and the state: a journal that says so, and the trial state.
  State trial = f.state;
  trial.trial = true;
  trial.current = plan.to;
  ASSERT_TRUE(write_state(folder.root(), trial));
  auto journal = cut_off(f, plan);
  ASSERT_TRUE(journal);
  ASSERT_TRUE(journal->add({{"is", "passed"}}));
  const auto result = recover(folder.root(), RecoverWhen::boot, ports);
  ASSERT_TRUE(result);
  EXPECT_TRUE(result->found);
  EXPECT_TRUE(result->forward);
  EXPECT_EQ(state().current, plan.to);
  EXPECT_FALSE(state().trial);
}

TEST_F(Transaction, RecoveryAtBootRestoresFilesAndStartsNothing) {
  const Facts f = install();
  const auto before = folder.contents();
  kill_at(folder, plan_of(f, wish(Verb::uninstall, "", Mode::off)), 6);
  EXPECT_NE(folder.contents(), before);
  manager.calls.clear();
  const auto result = recover(folder.root(), RecoverWhen::boot, ports);
  ASSERT_TRUE(result);
  EXPECT_TRUE(result->found);
  EXPECT_EQ(result->code, ExitCode::done);
  EXPECT_EQ(folder.contents(), before);
  EXPECT_EQ(manager.calls, std::vector<std::string>{"reload"});
  EXPECT_TRUE(gates.empty());
}

TEST_F(Transaction, RecoveryWithoutAJournalFindsNothing) {
  const auto result = recover(folder.root(), RecoverWhen::now, ports);
  ASSERT_TRUE(result);
  EXPECT_FALSE(result->found);
}

TEST_F(Transaction, TornFirstRecordMeansThatNothingHadBegun) {
  folder.write("var/lib/kdtree/journal/active", R"(0123456789abcdef {"is": "beg)");
  const auto before = folder.contents();
  const auto result = recover(folder.root(), RecoverWhen::now, ports);
  ASSERT_TRUE(result);
  EXPECT_FALSE(result->found);
  EXPECT_FALSE(journal_left());
  EXPECT_EQ(folder.contents(), before);
}

TEST_F(Transaction, ADamagedFirstRecordIsNoChangeThatNeverBegan) {
  const Facts f = install();
  cut_off_in_fallback(f, plan_of(f, kValidate));
  auto text = folder.read("var/lib/kdtree/journal/active");
  text[100] = text[100] == 'x' ? 'y' : 'x';
  folder.write("var/lib/kdtree/journal/active", text);
  const auto before = folder.contents();
  const auto result = recover(folder.root(), RecoverWhen::now, ports);
  ASSERT_FALSE(result);
  EXPECT_NE(result.error().what.find("is damaged"), std::string::npos) << result.error().what;
  EXPECT_TRUE(journal_left()) << "it is the report";
  EXPECT_EQ(folder.contents(), before);
  EXPECT_FALSE(describe_cut_off(folder.root()));
}

TEST_F(Transaction, WhatWasCutOffIsSaidBeforeItIsEnded) {
  EXPECT_EQ(describe_cut_off(folder.root()).value(), "");
  const Facts f = install();
  cut_off_in_fallback(f, plan_of(f, kValidate));
  EXPECT_EQ(describe_cut_off(folder.root()).value(),
            "mode r1 off -> r1 validate, begun 2026-01-01T00:00:00Z");
  EXPECT_TRUE(manager.calls.empty());
}

TEST_F(Transaction, DamagedAndTornRecordsDoNotCount) {
  const Facts f = install();
  auto journal = cut_off(f, plan_of(f, kValidate));
  ASSERT_TRUE(journal);
  std::ofstream(folder / "var/lib/kdtree/journal/active", std::ios::app)
      << "0000000000000000 {\"is\":\"passed\"}\n"
      << R"(1234 {"is":"pass)";
  const auto result = recover(folder.root(), RecoverWhen::now, ports);
  ASSERT_TRUE(result);
  EXPECT_FALSE(result->forward) << "a record whose checksum is wrong is none";
}

TEST_F(Transaction, JournalOfANewerFormatIsRefused) {
  auto journal = Journal::begin(folder.root(), {{"time", "t"}});
  ASSERT_TRUE(journal);
  const std::string text = R"({"is":"begin","format":99})";
  folder.write("var/lib/kdtree/journal/active", sha256_hex(text).substr(0, 16) + " " + text + "\n");
  const auto result = recover(folder.root(), RecoverWhen::now, ports);
  ASSERT_FALSE(result);
  EXPECT_NE(result.error().what.find("newer kdtreectl"), std::string::npos);
  EXPECT_TRUE(journal_left());
}

}  // namespace
}  // namespace kdtree
