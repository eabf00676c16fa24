// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <csignal>

#include "agent/plan/evidence.h"
#include "agent/stats/control_file.h"
#include "transaction_host.h"

namespace kdtree {
namespace {

using namespace test;

TEST_F(Transaction, DeployThatPassesItsGateIsGood) {
  const auto plan = plan_of(facts(), kDeploy);
  const auto result = applied(plan);
  EXPECT_EQ(result.code, ExitCode::done) << result.reason;
  EXPECT_EQ(folder.read(kDropIn + 1), find_step(plan, StepKind::write_file)->after->bytes);
  EXPECT_EQ(fs::read_symlink(folder / "opt/kdtree/current"), "/opt/kdtree/releases/r1");
  EXPECT_EQ(manager.calls, (std::vector<std::string>{"reload", "restart engine.service"}));
  ASSERT_EQ(gates.size(), 1u);
  EXPECT_TRUE(gates[0].restarted);
  EXPECT_EQ(gates[0].previous_invocation, "a");
  EXPECT_EQ(gates[0].expect.ranks, 2);
  EXPECT_EQ(state().current, (Deployed{"r1", Mode::off, false}));
  EXPECT_FALSE(state().trial);
  ASSERT_EQ(state().history.size(), 1u);
  EXPECT_EQ(state().history[0].result, "good");
  EXPECT_EQ(state().history[0].plan, plan_hash(plan));
  EXPECT_FALSE(journal_left());
  EXPECT_NE(folder.read("var/lib/kdtree/audit.jsonl").find("\"deploy\""), std::string::npos);
}

TEST_F(Transaction, StateIsTrialUntilTheGateHasPassed) {
  on_gate = [&](const GateCall&) {
    EXPECT_TRUE(state().trial);
    EXPECT_EQ(state().current, (Deployed{"r1", Mode::off, false}));
    EXPECT_FALSE(state().good);
    EXPECT_TRUE(journal_left());
    return Status{};
  };
  applied(plan_of(facts(), kDeploy));
  EXPECT_FALSE(state().trial);
}

TEST_F(Transaction, FailedGatePutsEverythingBack) {
  const auto before = folder.contents();
  on_gate = [&](const GateCall& call) -> Status {
    if (call.expect.ranks > 0) return fail(ExitCode::rolled_back, "never healthy");
    return {};
  };
  const auto result = applied(plan_of(facts(), kDeploy));
  EXPECT_EQ(result.code, ExitCode::rolled_back);
  EXPECT_EQ(result.reason, "never healthy");
  EXPECT_EQ(folder.contents(), before);
  EXPECT_EQ(manager.calls, (std::vector<std::string>{"reload", "restart engine.service", "reload",
                                                     "restart engine.service"}));
  EXPECT_EQ(gates.back().previous_invocation, "ax") << "the old state has to start anew";
  EXPECT_TRUE(state().current.none());
  EXPECT_EQ(state().history.back().result, "rolled back");
  EXPECT_EQ(state().history.back().reason, "never healthy");
  EXPECT_FALSE(journal_left());
}

TEST_F(Transaction, EngineThatWasStoppedStaysStoppedAfterAFailure) {
  Facts f = facts();
  f.unit.state.active_state = "inactive";
  on_gate = [](const GateCall&) -> Status { return fail(ExitCode::rolled_back, "no"); };
  EXPECT_EQ(applied(plan_of(f, kDeploy)).code, ExitCode::rolled_back);
  EXPECT_EQ(manager.calls.back(), "stop engine.service");
  EXPECT_EQ(gates.size(), 1u);
}

TEST_F(Transaction, LiveSwitchWritesTheControlFileAndKeepsTheEngine) {
  const auto plan = plan_of(install(), kValidate);
  EXPECT_EQ(applied(plan).code, ExitCode::done);
  EXPECT_EQ(manager.calls, std::vector<std::string>{"reload"});
  const auto control = read_control(folder.root()).value();
  ASSERT_TRUE(control);
  EXPECT_EQ(control->mode, Mode::validate);
  EXPECT_EQ(control->release_id, "r1");
  ASSERT_EQ(gates.size(), 1u);
  EXPECT_EQ(gates[0].generation, control->generation);
  EXPECT_EQ(gates[0].previous_invocation, "");
  EXPECT_EQ(state().current.mode, Mode::validate);
  EXPECT_EQ(state().before, (Deployed{"r1", Mode::off, false}));
}

TEST_F(Transaction, LiveSwitchThatFailsIsSwitchedBackLive) {
  const Facts f = install();
  const auto before = folder.contents();
  on_gate = [](const GateCall& call) -> Status {
    if (call.expect.mode == Mode::validate) return fail(ExitCode::rolled_back, "rank 1 is silent");
    return {};
  };
  EXPECT_EQ(applied(plan_of(f, kValidate)).code, ExitCode::rolled_back);
  EXPECT_EQ(manager.calls, (std::vector<std::string>{"reload", "reload"}));
  auto after = folder.contents();
  after.erase("run/kdtree/control");
  EXPECT_EQ(after, before);
  const auto control = read_control(folder.root()).value();
  ASSERT_TRUE(control);
  EXPECT_EQ(control->mode, Mode::off);
  EXPECT_GT(control->generation, gates[0].generation);
  EXPECT_EQ(gates[1].generation, 0u) << "a rank that never followed is where it should be";
}

TEST_F(Transaction, RanksThatDoNotComeBackLiveAreRestarted) {
  const Facts f = install();
  int asked = 0;
  on_gate = [&](const GateCall& call) -> Status {
    ++asked;
    if (!call.restarted) return fail(ExitCode::rolled_back, "engine died");
    return {};
  };
  EXPECT_EQ(applied(plan_of(f, kValidate)).code, ExitCode::rolled_back);
  EXPECT_EQ(asked, 3);
  EXPECT_EQ(manager.calls.back(), "restart engine.service");
}

TEST_F(Transaction, NoRestartFromFilesThatSystemdHasNotLoaded) {
  manager.state.need_daemon_reload = true;
  ASSERT_EQ(applied(plan_of(facts(), kDeploy)).code, ExitCode::done);
  const auto restart = std::ranges::find(manager.calls, "restart engine.service");
  ASSERT_NE(restart, manager.calls.end());
  EXPECT_EQ(std::count(manager.calls.begin(), restart, "reload"), 2);
}

TEST_F(Transaction, FailedRestartIsUndone) {
  bool first = true;
  manager.on_call = [&](const std::string& call) -> Status {
    if (call.starts_with("restart") && std::exchange(first, false))
      return fail(ExitCode::rolled_back, "job failed");
    return {};
  };
  const auto before = folder.contents();
  EXPECT_EQ(applied(plan_of(facts(), kDeploy)).code, ExitCode::rolled_back);
  EXPECT_EQ(folder.contents(), before);
}

TEST_F(Transaction, InterruptUndoesAndASecondOneIsIgnored) {
  const auto before = folder.contents();
  manager.on_call = [&](const std::string&) -> Status {
    ::raise(SIGINT);
    return {};
  };
  const auto result = applied(plan_of(facts(), kDeploy));
  EXPECT_EQ(result.code, ExitCode::rolled_back);
  EXPECT_EQ(result.reason, "interrupted");
  EXPECT_EQ(folder.contents(), before);
}

TEST_F(Transaction, ChangedBaseIsRefusedAndNothingTouched) {
  const auto plan = plan_of(install(), kValidate);
  folder.write(kDropIn + 1, "[Service]\n# somebody was here\n");
  const auto before = folder.contents();
  const auto result = apply(folder.root(), plan, ports);
  ASSERT_FALSE(result);
  EXPECT_EQ(result.error().code, ExitCode::refused);
  EXPECT_EQ(folder.contents(), before);
  EXPECT_TRUE(manager.calls.empty());
  EXPECT_FALSE(journal_left());
}

TEST_F(Transaction, FailureBeforeTheFirstStepIsARefusal) {
  ASSERT_TRUE(make_directories(folder / "var/lib/kdtree"));
  folder.write("var/lib/kdtree/journal", "in the way");
  const auto result = apply(folder.root(), plan_of(facts(), kDeploy), ports);
  ASSERT_FALSE(result);
  EXPECT_EQ(result.error().code, ExitCode::refused);
  EXPECT_TRUE(manager.calls.empty());
}

TEST_F(Transaction, FailedCleanupIsSaidAndNotUndone) {
  Facts f = facts();
  f.agent_unit = TextFile{"/usr/lib/systemd/system/kdtree-agent.service", ""};
  manager.on_call = [](const std::string& call) -> Status {
    if (call == "start kdtree-agent.service") return fail(ExitCode::refused, "agent won't start");
    return {};
  };
  const auto result = applied(plan_of(f, kDeploy));
  EXPECT_EQ(result.code, ExitCode::done);
  ASSERT_EQ(result.notes.size(), 1u);
  EXPECT_EQ(result.notes[0], "agent won't start");
}

TEST_F(Transaction, UninstallLeavesNothingButItsRecords) {
  const Facts f = install();
  folder.write("opt/kdtree/releases/r1/lib/x.so", "x");
  EXPECT_EQ(applied(plan_of(f, wish(Verb::uninstall, "", Mode::off))).code, ExitCode::done);
  auto left = folder.contents();
  EXPECT_EQ(left.size(), 1u) << "only the boot id of this test's /proc";
  EXPECT_FALSE(fs::exists(folder / "etc/systemd/system/engine.service.d"));
  EXPECT_TRUE(state().current.none());
}

TEST_F(Transaction, UndoOfUninstallRestoresEverything) {
  const Facts f = install();
  folder.write("opt/kdtree/releases/r1/lib/x.so", "x");
  const auto before = folder.contents();
  on_gate = [](const GateCall& call) -> Status {
    if (call.expect.ranks == 0) return fail(ExitCode::rolled_back, "engine needs kdtree");
    return {};
  };
  EXPECT_EQ(applied(plan_of(f, wish(Verb::uninstall, "", Mode::off))).code, ExitCode::rolled_back);
  EXPECT_EQ(folder.contents(), before);
  EXPECT_EQ(state().current, (Deployed{"r1", Mode::off, false}));
}

TEST_F(Transaction, AFailedChangeLeavesItsEvidence) {
  ports.last_lines = [](const std::string& unit) {
    return std::vector<std::string>{unit + ": CUDA out of memory"};
  };
  on_gate = only_plain;
  EXPECT_EQ(applied(plan_of(facts(), kDeploy)).code, ExitCode::rolled_back);
  const auto entry = state().history.back();
  const auto kept = read_evidence(folder.root(), entry.evidence);
  ASSERT_TRUE(kept && *kept);
  EXPECT_NE((*kept)->find("+ Environment=KDTREE_VERIFY=off"), std::string::npos) << **kept;
  EXPECT_NE((*kept)->find("failed: broken"), std::string::npos);
  EXPECT_NE((*kept)->find("engine.service: CUDA out of memory"), std::string::npos);
  EXPECT_FALSE(read_evidence(folder.root(), "/etc/passwd"));
  on_gate = {};
  EXPECT_EQ(applied(plan_of(facts(), kDeploy)).code, ExitCode::done);
  EXPECT_EQ(state().history.back().evidence, "");
}

TEST_F(Transaction, SomebodyElseIsToldToRevertBeforeAnythingBegins) {
  std::vector<std::string> order;
  ports.arm_revert = [&]() -> Status {
    EXPECT_FALSE(journal_left());
    order.emplace_back("arm");
    return {};
  };
  ports.disarm_revert = [&] {
    EXPECT_FALSE(journal_left());
    order.emplace_back("disarm");
  };
  ports.tell = [&](const HistoryEntry& entry) { order.push_back(entry.result); };
  applied(plan_of(facts(), kDeploy));
  EXPECT_EQ(order, (std::vector<std::string>{"arm", "good", "disarm"}));

  ports.arm_revert = []() -> Status { return fail(ExitCode::refused, "no timer"); };
  const auto before = folder.contents();
  const auto result = apply(folder.root(), plan_of(install(), kValidate), ports);
  ASSERT_FALSE(result);
  EXPECT_EQ(result.error().what, "no timer");
  EXPECT_FALSE(journal_left());
}

TEST_F(Transaction, RunningRequestsMayFinishBeforeARestart) {
  ports.drain_deadline = std::chrono::seconds(60);
  manager.state.main_pid = 77;
  EXPECT_EQ(applied(plan_of(facts(), kDeploy)).code, ExitCode::done);
  EXPECT_EQ(manager.calls, (std::vector<std::string>{"reload", "terminate engine.service",
                                                     "restart engine.service"}));
  // One that systemd would start again is stopped in systemd's own way.
  manager.calls.clear();
  manager.state.main_pid = 77;
  manager.state.restart = "always";
  auto other = wish(Verb::mode, "r1", Mode::off);
  other.restart = true;
  applied(plan_of(install(), other));
  EXPECT_EQ(manager.calls, std::vector<std::string>{"restart engine.service"});
}

TEST_F(Transaction, HowLongAStartTookIsKept) {
  applied(plan_of(facts(), kDeploy));
  ASSERT_TRUE(state().last_start);
  const auto took = *state().last_start;
  applied(plan_of(install(), kValidate));
  EXPECT_FALSE(state().last_start && *state().last_start != took) << "a live switch starts nothing";
}

}  // namespace
}  // namespace kdtree
