// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <set>

#include "tests/unit/sampler_rig.h"

namespace kdtree {
namespace {

using namespace std::chrono_literals;
using nlohmann::json;

const GpuSnapshot* board(const NvmlSnapshot& seen, int number) {
  for (const GpuSnapshot& gpu : seen.gpus)
    if (gpu.uuid == "GPU-fa4e0000-0000-0000-0000-00000000000" + std::to_string(number)) return &gpu;
  return nullptr;
}

bool well(const NvmlSnapshot& seen, int number) {
  const GpuSnapshot* gpu = board(seen, number);
  return gpu != nullptr && gpu->condition == GpuCondition::ok && gpu->values;
}

TEST(GpuReturns, OneThatNvmlShowsOnlyToANewInit) {
  FakeNvml fake;
  const GpuSampler sampler(quick());
  wait_for(sampler, all_have_pcie);
  fake.show({{"gpus", {{"3", {{"fail", "lost"}, {"until_init", true}}}}}});
  auto seen = wait_for(sampler, [](const auto& s) { return !well(s, 3); });
  EXPECT_EQ(board(seen, 3)->condition, GpuCondition::lost);
  fake.show(json::object());  // it is back, and this session will never see it
  seen = wait_for(sampler, [](const auto& s) { return well(s, 3); });
  EXPECT_TRUE(well(seen, 3));
  EXPECT_EQ(seen.gpus.size(), 8u);
}

TEST(GpuReturns, TheOthersKeepTheirValuesAndCountersMeanwhile) {
  FakeNvml fake;
  fake.show({{"gpus", {{"0", {{"utilization", 40}}}}}});
  const GpuSampler sampler(quick());
  wait_for(sampler, all_have_pcie);
  fake.show(
      {{"gpus", {{"0", {{"utilization", 40}}}, {"3", {{"fail", "lost"}, {"until_init", true}}}}}});
  wait_for(sampler, [](const auto& s) { return !well(s, 3); });
  auto before = sampler.snapshot();
  for (int i = 0; i < 60; ++i) {  // some sessions long
    std::this_thread::sleep_for(10ms);
    const auto now = sampler.snapshot();
    ASSERT_FALSE(now.failure);
    ASSERT_TRUE(well(now, 0));
    EXPECT_GE(board(now, 0)->observed, board(before, 0)->observed);
    EXPECT_EQ(board(now, 3)->condition, GpuCondition::lost);
    before = now;
  }
}

TEST(GpuReturns, OneThatStaysAwayIsLookedForEverMoreSeldom) {
  FakeNvml fake;
  fake.show({{"gpus", {{"3", {{"fail", "lost"}, {"until_init", true}}}}}});
  const GpuSampler sampler(quick());
  const auto began = std::chrono::steady_clock::now();
  std::set<std::uint64_t> sessions;
  while (std::chrono::steady_clock::now() - began < 1500ms) {
    sessions.insert(sampler.snapshot().session);
    std::this_thread::sleep_for(5ms);
  }
  sessions.erase(0);  // before the first
  // Begun anew after 200, 600 and 1400 ms; the time that a slow machine adds makes it no more.
  EXPECT_LE(sessions.size(), 4u);
  EXPECT_GE(sessions.size(), 2u);
}

TEST(GpuReturns, AfterAReset) {
  FakeNvml fake;
  const GpuSampler sampler(quick());
  wait_for(sampler, all_have_pcie);
  fake.show({{"gpus", {{"2", {{"fail", "reset_required"}}}}}});
  auto seen = wait_for(sampler, [](const auto& s) { return !well(s, 2); });
  EXPECT_EQ(board(seen, 2)->condition, GpuCondition::reset_required);
  EXPECT_EQ(gpu_condition_name(*board(seen, 2)->condition), "reset_required");
  EXPECT_FALSE(board(seen, 2)->values);
  fake.show(json::object());
  EXPECT_TRUE(well(wait_for(sampler, [](const auto& s) { return well(s, 2); }), 2));
}

TEST(GpuReturns, ADriverThatWasLoadedAgain) {
  FakeNvml fake;
  fake.show({{"driver", "580.1"}});
  const GpuSampler sampler(quick());
  wait_for(sampler, [](const auto& s) { return all_have_pcie(s) && s.events; });
  fake.show({{"driver", "590.2"}, {"load", 2}, {"init", "driver_not_loaded"}});
  auto seen = wait_for(sampler, [](const auto& s) { return s.failure.has_value(); });
  ASSERT_TRUE(seen.failure);
  EXPECT_EQ(seen.failure->failure, NvmlFailure::driver_not_loaded);
  fake.show({{"driver", "590.2"}, {"load", 2}});
  seen =
      wait_for(sampler, [](const auto& s) { return !s.failure && all_have_pcie(s) && s.events; });
  EXPECT_EQ(seen.driver, "590.2");
  EXPECT_TRUE(seen.events);
  EXPECT_EQ(seen.gpus.size(), 8u);
}

TEST(GpuReturns, AfterOneFellOffTheBusTheOthersAreToldApartByUuid) {
  FakeNvml fake;
  fake.show({{"count", 3}, {"gpus", {{"2", {{"utilization", 60}}}}}});
  const GpuSampler sampler(quick());
  wait_for(sampler, [](const auto& s) { return well(s, 0) && well(s, 1) && well(s, 2); });
  // Board 1 is gone after the reload: NVML numbers board 2 as 1.
  fake.show({{"count", 2}, {"load", 2}, {"gpus", {{"1", {{"board", 2}, {"utilization", 60}}}}}});
  const auto seen = wait_for(sampler, [](const auto& s) {
    return well(s, 0) && well(s, 2) && board(s, 2)->index == 1 && board(s, 1) != nullptr &&
           board(s, 1)->condition == GpuCondition::lost;
  });
  ASSERT_EQ(seen.gpus.size(), 3u);
  EXPECT_EQ(seen.visible, 2u);
  EXPECT_EQ(board(seen, 1)->condition, GpuCondition::lost);
  EXPECT_EQ(board(seen, 1)->detail, "NVML no longer lists it");
  EXPECT_FALSE(board(seen, 1)->values);
  EXPECT_TRUE(well(seen, 2));
  EXPECT_DOUBLE_EQ(*board(seen, 2)->values->utilization, 0.6);
}

TEST(GpuReturns, OneThatWasLostAtTheBeginningHasNoNameUntilItIsBack) {
  FakeNvml fake;
  fake.show({{"count", 2}, {"gpus", {{"1", {{"fail", "lost"}, {"until_init", true}}}}}});
  const GpuSampler sampler(quick());
  auto seen = wait_for(sampler, [](const auto& s) {
    return s.gpus.size() == 2 && well(s, 0) && s.gpus[1].condition;
  });
  EXPECT_EQ(seen.gpus.at(1).condition, GpuCondition::lost);
  EXPECT_EQ(seen.gpus[1].uuid, "");
  fake.show({{"count", 2}});
  seen = wait_for(sampler, [](const auto& s) { return well(s, 1); });
  EXPECT_TRUE(well(seen, 1));
  EXPECT_EQ(seen.gpus.size(), 2u);
}

}  // namespace
}  // namespace kdtree
