// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/wait.h>

#include <csignal>

#include "agent/plan/engine_unit.h"
#include "agent/plan/evidence.h"
#include "agent/plan/journal.h"
#include "agent/plan/transaction.h"
#include "agent/stats/control_file.h"
#include "agent/util/atomic_file.h"
#include "agent/util/sha256.h"
#include "plan_host.h"

namespace kdtree {
namespace {

using namespace test;

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

  State state() { return read_state(folder.root()).value(); }
  bool journal_left() { return recovery_needed(folder.root()).value(); }

  PlanFolder folder;
  RecordingManager manager;
  TransactionPorts ports;
  std::vector<GateCall> gates;
  std::function<Status(const GateCall&)> on_gate;
};

const Wish kDeploy = wish(Verb::deploy, "r1", Mode::off);
const Wish kValidate = wish(Verb::mode, "r1", Mode::validate);

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

TEST_F(Transaction, WhenGoingBackFailsTheEngineRunsWithoutKdtree) {
  const Facts f = install();
  on_gate = [](const GateCall& call) -> Status {
    if (call.expect.ranks > 0) return fail(ExitCode::rolled_back, "broken");
    return {};
  };
  const auto result = applied(plan_of(f, kValidate));
  EXPECT_EQ(result.code, ExitCode::rollback_failed);
  EXPECT_NE(result.undo_reason.find("runs without kdtree now"), std::string::npos);
  EXPECT_FALSE(fs::exists(folder / (kDropIn + 1)));
  EXPECT_EQ(gates.back().expect.ranks, 0);
  EXPECT_EQ(state().current, (Deployed{"r1", Mode::off, true}));
  EXPECT_EQ(state().history.back().result, "rollback failed");
  EXPECT_FALSE(journal_left());
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

// Going back fails: the old state's ranks never come, the plain engine does.
Status only_plain(const GateCall& call) {
  if (call.expect.ranks > 0) return fail(ExitCode::rolled_back, "broken");
  return {};
}

TEST_F(Transaction, TheLastWayOutNeedsNoDisk) {
  const auto plan = plan_of(install(), kValidate);
  const auto old_handler = ::signal(SIGXFSZ, SIG_IGN);
  rlimit before{};
  ASSERT_EQ(::getrlimit(RLIMIT_FSIZE, &before), 0);
  on_gate = [&](const GateCall& call) -> Status {
    const rlimit nothing{0, before.rlim_max};
    ::setrlimit(RLIMIT_FSIZE, &nothing);  // no file can grow any more, the journal least of all
    return only_plain(call);
  };
  const auto result = apply(folder.root(), plan, ports);
  ::setrlimit(RLIMIT_FSIZE, &before);
  ::signal(SIGXFSZ, old_handler);
  ASSERT_TRUE(result);
  EXPECT_EQ(result->code, ExitCode::rollback_failed);
  EXPECT_FALSE(fs::exists(folder / (kDropIn + 1))) << result->undo_reason;
  EXPECT_EQ(manager.calls.back(), "restart engine.service");
  EXPECT_NE(result->undo_reason.find("runs without kdtree now"), std::string::npos)
      << result->undo_reason;
  EXPECT_TRUE(journal_left()) << "it could not be recorded";
}

TEST_F(Transaction, AFallbackThatCannotStartTheEngineIsStillCold) {
  on_gate = [](const GateCall&) -> Status { return fail(ExitCode::rolled_back, "broken"); };
  EXPECT_EQ(applied(plan_of(install(), kValidate)).code, ExitCode::rollback_failed);
  EXPECT_FALSE(fs::exists(folder / (kDropIn + 1)));
  EXPECT_EQ(state().current, (Deployed{"r1", Mode::off, true})) << "that is what the files say";
}

TEST_F(Transaction, AWholeUnitFallsBackToItsPlainSelf) {
  Config whole = config();
  whole.engine.command = {"/opt/e/bin/python3", "-m", "sglang.launch_server"};
  Facts f = facts();
  f.unit = {};
  f.unit.state.load_state = "not-found";
  ASSERT_EQ(applied(plan_of(f, kDeploy, whole)).code, ExitCode::done);
  f = facts();
  f.state = state();
  f.unit.files = {{kFragment, folder.read(kFragment + 1)}};
  for (const auto& path : planned_paths(whole))
    f.files[path] = read_image(folder.root()(path)).value();
  on_gate = only_plain;
  EXPECT_EQ(applied(plan_of(f, kValidate, whole)).code, ExitCode::rollback_failed);
  const std::string now = folder.read(kFragment + 1);
  EXPECT_EQ(now.find("KDTREE_VERIFY"), std::string::npos) << now;
  EXPECT_EQ(state().managed, (std::map<std::string, std::string>{{kFragment, sha256_hex(now)}}));
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

// As if kdtreectl had been killed while it started the engine without kdtree, which `steps` of the
// fallback had prepared.
void cut_off_in_fallback(PlanFolder& folder, const Facts& f, const Plan& plan) {
  auto journal = Journal::begin(folder.root(), {{"time", "2026-01-01T00:00:00Z"},
                                                {"boot_id", "boot-1"},
                                                {"state", to_json(f.state)},
                                                {"plan", to_json(plan)}});
  ASSERT_TRUE(journal);
  for (std::size_t i = 0; i < plan.steps.size(); ++i)
    ASSERT_TRUE(journal->add({{"is", "start"}, {"step", i}}));
  ASSERT_TRUE(journal->add({{"is", "undo"}}));
  ASSERT_TRUE(journal->add({{"is", "fallback"}}));
}

TEST_F(Transaction, AFallbackThatWasCutOffIsReplayed) {
  const Facts f = install();
  cut_off_in_fallback(folder, f, plan_of(f, kValidate));
  const auto result = recover(folder.root(), RecoverWhen::now, ports);
  ASSERT_TRUE(result);
  EXPECT_EQ(result->code, ExitCode::rollback_failed);
  EXPECT_NE(result->reason.find("runs without kdtree now"), std::string::npos) << result->reason;
  EXPECT_FALSE(fs::exists(folder / (kDropIn + 1)));
  EXPECT_EQ(manager.calls, (std::vector<std::string>{"reload", "restart engine.service"}));
  ASSERT_EQ(gates.size(), 1u);
  EXPECT_EQ(gates[0].expect.ranks, 0);
  EXPECT_EQ(state().current, (Deployed{"r1", Mode::off, true}));
  EXPECT_FALSE(journal_left());
}

TEST_F(Transaction, AtBootTheFallbackIsFilesOnly) {
  const Facts f = install();
  cut_off_in_fallback(folder, f, plan_of(f, kValidate));
  const auto result = recover(folder.root(), RecoverWhen::boot, ports);
  ASSERT_TRUE(result);
  EXPECT_FALSE(fs::exists(folder / (kDropIn + 1)));
  EXPECT_EQ(manager.calls, std::vector<std::string>{"reload"});
  EXPECT_EQ(state().current, (Deployed{"r1", Mode::off, true}));
}

TEST_F(Transaction, AnEngineThatSystemdCouldNotBeAskedForIsAskedForAgain) {
  int restarts = 0;
  manager.on_call = [&](const std::string& call) -> Status {
    if (call == "restart engine.service" && ++restarts == 2)
      return fail(ExitCode::refused, "cannot reach systemd");
    return {};
  };
  on_gate = [](const GateCall& call) -> Status {
    if (call.expect.ranks > 0) return fail(ExitCode::rolled_back, "never healthy");
    return {};
  };
  const auto result = applied(plan_of(facts(), kDeploy));
  EXPECT_EQ(result.code, ExitCode::rollback_failed);
  EXPECT_NE(result.undo_reason.find("kdtreectl recover"), std::string::npos) << result.undo_reason;
  EXPECT_TRUE(journal_left()) << "the engine still runs on files that are gone";

  const auto again = recover(folder.root(), RecoverWhen::now, ports);
  ASSERT_TRUE(again);
  EXPECT_EQ(again->code, ExitCode::done) << again->reason;
  EXPECT_EQ(restarts, 3);
  EXPECT_TRUE(state().current.none());
  EXPECT_FALSE(journal_left());
}

TEST_F(Transaction, AFallbackThatSystemdCouldNotBeAskedForIsAskedForAgain) {
  const Facts f = install();
  bool bus = false;
  manager.on_call = [&](const std::string& call) -> Status {
    if (call == "restart engine.service" && !bus)
      return fail(ExitCode::refused, "cannot reach systemd");
    return {};
  };
  on_gate = [](const GateCall& call) -> Status {
    if (call.expect.ranks > 0) return fail(ExitCode::rolled_back, "rank 1 does not follow");
    return {};
  };
  EXPECT_EQ(applied(plan_of(f, kValidate)).code, ExitCode::rollback_failed);
  EXPECT_TRUE(journal_left());

  bus = true;
  const auto again = recover(folder.root(), RecoverWhen::now, ports);
  ASSERT_TRUE(again);
  EXPECT_EQ(manager.calls.back(), "restart engine.service");
  EXPECT_EQ(state().current, (Deployed{"r1", Mode::off, true}));
  EXPECT_FALSE(journal_left());
}

TEST_F(Transaction, RecoveryThatGoesForwardSaysWhatItCouldNotDo) {
  Facts f = facts();
  f.agent_unit = TextFile{"/usr/lib/systemd/system/kdtree-agent.service", ""};
  const auto plan = plan_of(f, kDeploy);
  auto journal = Journal::begin(folder.root(), {{"time", "2026-01-01T00:00:00Z"},
                                                {"boot_id", "boot-1"},
                                                {"state", to_json(f.state)},
                                                {"plan", to_json(plan)}});
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
  auto journal = Journal::begin(folder.root(), {{"time", "2026-01-01T00:00:00Z"},
                                                {"boot_id", "boot-1"},
                                                {"state", to_json(f.state)},
                                                {"plan", to_json(plan)}});
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
  folder.write("var/lib/kdtree/journal/active", "0123456789abcdef {\"is\": \"beg");
  const auto before = folder.contents();
  const auto result = recover(folder.root(), RecoverWhen::now, ports);
  ASSERT_TRUE(result);
  EXPECT_FALSE(result->found);
  EXPECT_FALSE(journal_left());
  EXPECT_EQ(folder.contents(), before);
}

TEST_F(Transaction, ADamagedFirstRecordIsNoChangeThatNeverBegan) {
  const Facts f = install();
  cut_off_in_fallback(folder, f, plan_of(f, kValidate));
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
  cut_off_in_fallback(folder, f, plan_of(f, kValidate));
  EXPECT_EQ(describe_cut_off(folder.root()).value(),
            "mode r1 off -> r1 validate, begun 2026-01-01T00:00:00Z");
  EXPECT_TRUE(manager.calls.empty());
}

TEST_F(Transaction, DamagedAndTornRecordsDoNotCount) {
  const Facts f = install();
  auto journal = Journal::begin(folder.root(), {{"time", "t"},
                                                {"boot_id", "boot-1"},
                                                {"state", to_json(f.state)},
                                                {"plan", to_json(plan_of(f, kValidate))}});
  ASSERT_TRUE(journal);
  std::ofstream(folder / "var/lib/kdtree/journal/active", std::ios::app)
      << "0000000000000000 {\"is\":\"passed\"}\n"
      << "1234 {\"is\":\"pass";
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
