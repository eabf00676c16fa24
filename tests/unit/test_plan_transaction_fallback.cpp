// SPDX-License-Identifier: Apache-2.0
#include <sys/resource.h>

#include <csignal>

#include "agent/util/sha256.h"
#include "transaction_host.h"

namespace kdtree {
namespace {

using namespace test;

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

TEST_F(Transaction, AFallbackThatWasCutOffIsReplayed) {
  const Facts f = install();
  cut_off_in_fallback(f, plan_of(f, kValidate));
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
  cut_off_in_fallback(f, plan_of(f, kValidate));
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

}  // namespace
}  // namespace kdtree
