// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <csignal>

#include "agent/gate/health_gate.h"
#include "agent/util/interrupt.h"
#include "tests/unit/gate_host.h"

namespace kdtree {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

class HealthGate : public testing::Test {
 protected:
  HealthGate() {
    wish.unit = "sglang.service";
    wish.previous_invocation = "old";
    wish.health_url = health.url();
    wish.ranks = 3;
    wish.release_id = "r1";
    wish.mode = Mode::validate;
    wish.deadline = seconds(3);
    wish.stable = milliseconds(300);
    for (int rank = 0; rank < 3; ++rank) write(test::rank_header(rank, "r1", Mode::validate));
  }
  void write(const kdtree_stats_header& header) {
    test::write_rank(folder, std::to_string(header.tp_rank + 100), header);
  }
  Result<GateReport> wait(const GateProgressFn& progress = {}) {
    return wait_until_healthy(folder.root(), services, wish, progress);
  }
  // The reason why the gate stayed shut; a gate that opened gives "".
  std::string refusal() {
    auto report = wait();
    if (report) return "";
    EXPECT_EQ(report.error().code, ExitCode::rolled_back);
    EXPECT_EQ(report.error().what.find('\n'), std::string::npos);
    return report.error().what;
  }

  test::Folder folder;
  test::HealthServer health;
  test::FakeServices services;
  GateWish wish;
};

TEST_F(HealthGate, OpensWhenEverythingHolds) {
  auto report = wait();
  ASSERT_TRUE(report) << report.error().what;
  EXPECT_EQ(report->unit.invocation_id, "new");
  EXPECT_GE(report->elapsed, wish.stable);
}

TEST_F(HealthGate, SaysWhichChecksCouldNotBeMade) {
  auto report = wait();
  ASSERT_TRUE(report);
  ASSERT_EQ(report->notes.size(), 2u);
  EXPECT_NE(report->notes[0].find("journal"), std::string::npos);
  EXPECT_NE(report->notes[1].find("/proc/net/tcp"), std::string::npos);
}

TEST_F(HealthGate, StaysShutUnderTheOldInvocation) {
  services.state.invocation_id = "old";
  EXPECT_NE(refusal().find("started anew"), std::string::npos);
}

TEST_F(HealthGate, WithoutARestartTheInvocationMustStay) {
  wish.previous_invocation.clear();
  services.state.invocation_id = "old";
  EXPECT_EQ(refusal(), "");
  int calls = 0;
  services.next = [&](UnitState& state) { state.invocation_id = ++calls > 1 ? "another" : "old"; };
  wish.stable = seconds(2);
  EXPECT_NE(refusal().find("crashed and was started again"), std::string::npos);
}

TEST_F(HealthGate, AnUnitThatEndedEndsTheGateAtOnce) {
  wish.deadline = std::chrono::minutes(30);
  services.state.active_state = "failed";
  services.state.result = "exit-code";
  services.state.exec_main_status = 3;
  const auto why = refusal();
  EXPECT_NE(why.find("failed (exit-code, status 3)"), std::string::npos) << why;
}

TEST_F(HealthGate, ACrashThatSystemdHidesByRestartingIsACrash) {
  wish.deadline = std::chrono::minutes(30);
  services.state.active_state = "activating";
  services.state.sub_state = "auto-restart";
  EXPECT_NE(refusal().find("crashed"), std::string::npos);
  services.state.active_state = "active";
  services.state.sub_state = "running";
  services.state.restarts = 1;
  EXPECT_NE(refusal().find("crashed and was started again"), std::string::npos);
}

TEST_F(HealthGate, WaitsForAnEngineThatTakesItsTime) {
  health.status = 503;
  services.state.active_state = "activating";
  int calls = 0;
  services.next = [&](UnitState& state) {
    if (++calls == 2) state.active_state = "active";
    if (calls == 3) health.status = 200;
  };
  wish.deadline = seconds(20);
  EXPECT_EQ(refusal(), "");
}

TEST_F(HealthGate, AnEngineThatNeverGetsHealthyIsNamedWithItsAnswer) {
  health.status = 503;
  EXPECT_NE(refusal().find("answers 503"), std::string::npos);
  health.status = 0;
  EXPECT_NE(refusal().find("no answer from " + health.url()), std::string::npos);
}

TEST_F(HealthGate, EachRankHasToSayTheRightThing) {
  wish.deadline = milliseconds(800);
  const auto good = test::rank_header(1, "r1", Mode::validate);
  auto wrong = good;
  wrong.mode = KDTREE_MODE_OFF;
  write(wrong);
  EXPECT_NE(refusal().find("rank 1: is in mode off"), std::string::npos);
  wrong = test::rank_header(1, "r0", Mode::validate);
  write(wrong);
  EXPECT_NE(refusal().find("rank 1: reports release r0"), std::string::npos);
  wrong = good;
  wrong.pid_start_ticks = 1;
  write(wrong);
  EXPECT_NE(refusal().find("rank 1: process 77 has ended"), std::string::npos);
  wrong = good;
  wrong.patch_state = KDTREE_PATCH_PASSIVE;
  write(wrong);
  EXPECT_NE(refusal().find("rank 1: passive"), std::string::npos);
  write(good);
  EXPECT_EQ(refusal(), "");
}

TEST_F(HealthGate, ARankThatRefusedEndsTheGateAtOnce) {
  wish.deadline = std::chrono::minutes(30);
  auto refused = test::rank_header(2, "r1", Mode::validate);
  refused.patch_state = KDTREE_PATCH_REFUSED;
  std::strcpy(refused.reason, "torch 2.12 instead of 2.11");
  write(refused);
  EXPECT_NE(refusal().find("rank 2: refused, torch 2.12"), std::string::npos);
}

TEST_F(HealthGate, ARefusalBeforeTheRankWasKnownIsTold) {
  wish.deadline = std::chrono::minutes(30);
  std::filesystem::remove(folder / "run/kdtree/stats/102.stats");
  auto refused = test::rank_header(-1, "r1", Mode::off);
  refused.patch_state = KDTREE_PATCH_REFUSED;
  std::strcpy(refused.reason, "unknown engine");
  write(refused);
  EXPECT_NE(refusal().find("refused the patch: unknown engine"), std::string::npos);
}

TEST_F(HealthGate, RanksMustHaveSeenTheControlFile) {
  wish.previous_invocation.clear();
  wish.generation = 5;
  wish.deadline = milliseconds(800);
  EXPECT_NE(refusal().find("has not seen the new control file"), std::string::npos);
  for (int rank = 0; rank < 3; ++rank) {
    auto header = test::rank_header(rank, "r1", Mode::validate);
    header.control_generation = 5;
    write(header);
  }
  EXPECT_EQ(refusal(), "");
}

TEST_F(HealthGate, WithoutKdtreeTheUnitAndItsHealthAreEnough) {
  std::filesystem::remove_all(folder / "run");
  wish.ranks = 0;
  EXPECT_EQ(refusal(), "");
  health.status = 500;
  EXPECT_NE(refusal(), "");
}

TEST_F(HealthGate, StabilityIsWithoutABreak) {
  wish.stable = seconds(2);
  wish.deadline = seconds(4);
  int calls = 0;
  services.next = [&](UnitState&) {
    if (++calls == 3) health.status = 500;
    if (calls == 6) health.status = 200;
  };
  const auto why = refusal();
  EXPECT_NE(why.find("was not healthy after 4 s"), std::string::npos) << why;
}

TEST_F(HealthGate, AGoldenPromptHasToBeAnsweredRight) {
  test::HealthServer engine;
  engine.body = R"({"text": "Paris\nis\u001b it"})";
  wish.golden = GoldenPrompt{engine.url(), R"({"text": "The capital of France?"})", "Paris"};
  EXPECT_EQ(refusal(), "");
  EXPECT_EQ(engine.asked, 1) << "asked once, not at each look";
  wish.golden->expect = "London";
  EXPECT_NE(refusal().find("the answer holds no \"London\", it is: {\"text\": \"Paris"),
            std::string::npos);
  wish.ranks = 0;
  EXPECT_EQ(refusal(), "") << "an engine without kdtree is not asked";
}

TEST_F(HealthGate, AGoldenPromptIsAskedUntilItIsAnswered) {
  test::HealthServer engine;
  engine.status = 503;
  wish.golden = GoldenPrompt{engine.url(), "{}", "x"};
  EXPECT_NE(refusal().find("golden prompt: " + engine.url() + " answers 503"), std::string::npos);
}

TEST_F(HealthGate, GpusMustHaveSomethingLeft) {
  std::vector<GpuFacts> gpus(2);
  gpus[0].uuid = "GPU-a";
  gpus[0].free_bytes = 100u << 20;
  gpus[1].index = 1;
  gpus[1].uuid = "GPU-b";
  gpus[1].free_bytes = 5000u << 20;
  wish.gpu_free_bytes = 512u << 20;
  wish.gpus = [&]() -> Result<GpuList> { return GpuList{"", gpus}; };
  EXPECT_NE(refusal().find("GPU 0 has 100 MiB left, gate.gpu_free_mib is 512"), std::string::npos);
  auto header = test::rank_header(0, "r1", Mode::validate);
  std::strcpy(header.device_uuid, "GPU-b");
  write(header);
  EXPECT_EQ(refusal(), "") << "GPU 0 is no rank's";
  gpus[1].free_bytes.reset();
  EXPECT_NE(refusal().find("GPU 1: its memory can't be read"), std::string::npos);
}

TEST_F(HealthGate, ProgressTellsStageAndWhatIsMissing) {
  std::filesystem::remove(folder / "run/kdtree/stats/101.stats");
  wish.deadline = milliseconds(600);
  std::string stage, detail;
  EXPECT_FALSE(wait([&](const GateProgress& progress) {
    stage = progress.stage;
    detail = progress.detail;
    EXPECT_LE(progress.remaining, wish.deadline);
  }));
  EXPECT_EQ(stage, "ranks 2/3");
  EXPECT_EQ(detail, "rank 1: no stats file");
}

TEST_F(HealthGate, AnInterruptEndsTheWaiting) {
  InterruptGuard guard;
  std::raise(SIGINT);
  EXPECT_NE(refusal().find("interrupted"), std::string::npos);
  clear_interrupt();
}

}  // namespace
}  // namespace kdtree
