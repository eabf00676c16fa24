// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include "tests/unit/sampler_rig.h"

namespace kdtree {
namespace {

using namespace std::chrono_literals;
using nlohmann::json;

// The one GPU that `about` describes, once `wanted` holds.
GpuSnapshot one_gpu(FakeNvml& fake, const json& about,
                    const std::function<bool(const GpuSnapshot&)>& wanted,
                    std::chrono::milliseconds period = 20ms) {
  fake.show({{"count", 1}, {"gpus", {{"0", about}}}});
  auto options = quick();
  options.period = period;
  options.values_valid = 20 * period;
  const GpuSampler sampler(options);
  const auto seen = wait_for(sampler, [&](const auto& s) {
    return s.gpus.size() == 1 && s.gpus[0].values && s.gpus[0].slow && wanted(s.gpus[0]);
  });
  return seen.gpus.at(0);
}

TEST(GpuUtilization, BurstsBetweenTwoReadingsAreSeen) {
  FakeNvml fake;
  // Nine tenths of the time idle, in turns much shorter than the period.
  const auto gpu = one_gpu(
      fake, {{"utilization", {0, 0, 0, 0, 0, 0, 0, 0, 0, 100}}, {"step_ms", 4}, {"sample_ms", 4}},
      [](const GpuSnapshot& g) { return g.spread.total() >= 1000; }, 400ms);
  EXPECT_NEAR(*gpu.values->utilization, 0.1, 0.02);
  EXPECT_EQ(gpu.values->utilization_max, 1.0);
  const auto total = static_cast<double>(gpu.spread.total());
  ASSERT_GE(total, 1000);
  EXPECT_NEAR(static_cast<double>(gpu.spread.counts.front()) / total, 0.9, 0.02);
  EXPECT_NEAR(static_cast<double>(gpu.spread.counts.back()) / total, 0.1, 0.02);
  EXPECT_NEAR(gpu.spread.sum / total, 0.1, 0.02);
  EXPECT_NEAR(gpu.busy / gpu.observed, 0.1, 0.02);
}

TEST(GpuUtilization, WithoutASampleBufferTheRateIsRead) {
  FakeNvml fake;
  const auto gpu = one_gpu(fake, {{"utilization", 37}, {"not_supported", {"samples"}}},
                           [](const GpuSnapshot& g) { return g.observed > 100ms; });
  EXPECT_DOUBLE_EQ(*gpu.values->utilization, 0.37);
  EXPECT_NEAR(gpu.busy / gpu.observed, 0.37, 1e-9);
}

TEST(GpuUtilization, WithoutAnyItIsUnknown) {
  FakeNvml fake;
  const auto gpu = one_gpu(fake, {{"utilization", 37}, {"not_supported", {"utilization"}}},
                           [](const auto&) { return true; });
  EXPECT_FALSE(gpu.values->utilization);
  EXPECT_FALSE(gpu.values->utilization_max);
  EXPECT_EQ(gpu.observed.count(), 0);
  EXPECT_EQ(gpu.spread.total(), 0u);
}

TEST(UtilizationSpread, ABoundBelongsToItsBucket) {
  UtilizationSpread spread;
  for (double value : {0.0, 0.05, 0.051, 0.99, 0.991, 1.0}) spread.add(value);
  EXPECT_EQ(spread.counts, (decltype(spread.counts){1, 1, 1, 0, 0, 0, 0, 0, 1, 2}));
  EXPECT_EQ(spread.total(), 6u);
}

TEST(GpuValues, EnergyClocksEccAndProcesses) {
  FakeNvml fake;
  const auto gpu =
      one_gpu(fake,
              {{"energy_mj", 123'456},
               {"sm_mhz", 2100},
               {"memory_mhz", 14'001},
               {"sm_max_mhz", 3090},
               {"memory_max_mhz", 14'002},
               {"power_limit_mw", 600'500},
               {"ecc_corrected", 7},
               {"ecc_uncorrected", 1},
               {"clock_events", 1 << 2 | 1 << 6},
               {"processes", {{{"pid", 11}, {"memory", 5}}, {{"pid", 12}, {"memory", 6}}}}},
              [](const GpuSnapshot& g) { return g.clock_event_time[2] > 60ms; });
  EXPECT_DOUBLE_EQ(*gpu.values->energy_joules, 123.456);
  EXPECT_DOUBLE_EQ(*gpu.values->sm_clock_hertz, 2.1e9);
  EXPECT_DOUBLE_EQ(*gpu.values->memory_clock_hertz, 14.001e9);
  EXPECT_DOUBLE_EQ(*gpu.slow->sm_clock_max_hertz, 3.09e9);
  EXPECT_DOUBLE_EQ(*gpu.slow->memory_clock_max_hertz, 14.002e9);
  EXPECT_DOUBLE_EQ(*gpu.slow->power_limit_watts, 600.5);
  EXPECT_EQ(gpu.slow->ecc_corrected, 7u);
  EXPECT_EQ(gpu.slow->ecc_uncorrected, 1u);
  ASSERT_EQ(gpu.slow->processes->size(), 2u);
  EXPECT_EQ(gpu.slow->processes->at(0).pid, 12u);
  EXPECT_EQ(gpu.slow->processes->at(0).memory_bytes, 6u);
  ASSERT_TRUE(gpu.values->clock_events);
  for (std::size_t i = 0; i < kClockEvents.size(); ++i) {
    EXPECT_EQ((*gpu.values->clock_events)[i],
              kClockEvents[i] == "software_power_cap" || kClockEvents[i] == "hardware_thermal")
        << kClockEvents[i];
    EXPECT_EQ(gpu.clock_event_time[i].count() > 0, (*gpu.values->clock_events)[i]);
  }
}

TEST(GpuValues, WhatAGpuHasNotIsUnknown) {
  FakeNvml fake;
  const auto gpu = one_gpu(
      fake,
      {{"not_supported", {"energy", "clocks", "clock_events", "ecc", "processes", "power_limit"}}},
      [](const auto&) { return true; });
  EXPECT_TRUE(gpu.values->power_watts);
  EXPECT_FALSE(gpu.values->energy_joules);
  EXPECT_FALSE(gpu.values->sm_clock_hertz);
  EXPECT_FALSE(gpu.values->clock_events);
  EXPECT_FALSE(gpu.slow->ecc_corrected);
  EXPECT_FALSE(gpu.slow->processes);
  EXPECT_FALSE(gpu.slow->power_limit_watts);
  EXPECT_FALSE(gpu.values->gpm.sm_active);
}

TEST(GpuGpm, ItsCountersInBaseUnitsAndPcieWithoutTheSlowCounters) {
  FakeNvml fake;
  const auto gpu = one_gpu(
      fake,
      {{"gpm", {{"2", 97.5}, {"3", 12.5}, {"5", 1.25}, {"10", 80}, {"20", 2}, {"21", 4}}},
       {"pcie_rx_kb", 9}},
      [](const GpuSnapshot& g) {
        return g.values->gpm.sm_active && !g.slow->pcie_receive_bytes_per_second;
      },
      150ms);
  EXPECT_DOUBLE_EQ(gpu.values->gpm.sm_active.value_or(-1), 0.975);
  EXPECT_DOUBLE_EQ(gpu.values->gpm.sm_occupancy.value_or(-1), 0.125);
  EXPECT_DOUBLE_EQ(gpu.values->gpm.tensor_active.value_or(-1), 0.0125);
  EXPECT_DOUBLE_EQ(gpu.values->gpm.dram_active.value_or(-1), 0.8);
  EXPECT_DOUBLE_EQ(gpu.values->gpm.pcie_transmit_bytes_per_second.value_or(-1), 2 << 20);
  EXPECT_DOUBLE_EQ(gpu.values->gpm.pcie_receive_bytes_per_second.value_or(-1), 4 << 20);
  EXPECT_FALSE(gpu.slow->pcie_took);
}

TEST(GpuGpm, ACounterThatFailsIsUnknownAndHarmsNothing) {
  FakeNvml fake;
  const auto gpu = one_gpu(
      fake, {{"gpm", {{"2", 50}}}, {"pcie_rx_kb", 9}},
      [](const GpuSnapshot& g) {
        return g.values->gpm.sm_active && g.slow->pcie_receive_bytes_per_second;
      },
      150ms);
  EXPECT_TRUE(gpu.values->gpm.sm_active);
  EXPECT_FALSE(gpu.values->gpm.tensor_active);
  EXPECT_EQ(gpu.slow->pcie_receive_bytes_per_second, 9000.0);  // from the slow counters then
}

}  // namespace
}  // namespace kdtree
