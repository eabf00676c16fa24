// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include "agent/nvml/list_gpus.h"
#include "tests/unit/sampler_rig.h"

namespace kdtree {
namespace {

using namespace std::chrono_literals;
using nlohmann::json;

TEST(GpuSampler, ReadsEightGpusAndTheirVeryValues) {
  FakeNvml fake;
  json gpus;
  for (int i = 0; i < 8; ++i)
    gpus[std::to_string(i)] = {{"utilization", 10 * i + 3}, {"memory_used", 1'000'000'000LL + i},
                               {"power_mw", 100'500 + i},   {"temperature", 40 + i},
                               {"pcie_rx_kb", 100 + i},     {"pcie_tx_kb", 200 + i}};
  fake.show({{"gpus", gpus}, {"driver", "580.1.2"}});
  const GpuSampler sampler(quick());
  const auto seen = wait_for(sampler, [](const auto& s) { return all_have_pcie(s) && s.events; });

  EXPECT_FALSE(seen.failure);
  EXPECT_EQ(seen.visible, 8u);
  EXPECT_EQ(seen.driver, "580.1.2");
  EXPECT_TRUE(seen.events);
  ASSERT_EQ(seen.gpus.size(), 8u);
  for (int i = 0; i < 8; ++i) {
    const GpuSnapshot& gpu = seen.gpus[static_cast<std::size_t>(i)];
    EXPECT_EQ(gpu.index, i);
    EXPECT_EQ(gpu.name, "NVIDIA RTX PRO 6000 Blackwell");
    EXPECT_EQ(gpu.uuid, "GPU-fa4e0000-0000-0000-0000-00000000000" + std::to_string(i));
    EXPECT_EQ(gpu.pci_bus_id, std::string("00000000:") + "12345678"[i] + "0:00.0");
    EXPECT_EQ(gpu.condition, GpuCondition::ok);
    ASSERT_TRUE(gpu.values);
    EXPECT_DOUBLE_EQ(*gpu.values->utilization, (10 * i + 3) / 100.0);
    EXPECT_EQ(gpu.values->memory_used_bytes, 1'000'000'000u + static_cast<unsigned>(i));
    EXPECT_EQ(gpu.values->memory_total_bytes, 96ull << 30);
    EXPECT_DOUBLE_EQ(*gpu.values->power_watts, 100.5 + i / 1000.0);
    EXPECT_DOUBLE_EQ(*gpu.values->temperature_celsius, 40 + i);
    EXPECT_DOUBLE_EQ(*gpu.slow->pcie_receive_bytes_per_second, (100 + i) * 1000.0);
    EXPECT_DOUBLE_EQ(*gpu.slow->pcie_transmit_bytes_per_second, (200 + i) * 1000.0);
    EXPECT_LT(*gpu.sample_age, 10s);
  }
}

TEST(GpuSampler, AValueThatAGpuCantTellIsUnknownAndNotZero) {
  FakeNvml fake;
  fake.show(
      {{"count", 1},
       {"gpus",
        {{"0",
          {{"utilization", 50}, {"not_supported", {"power", "pcie", "events", "temperature"}}}}}}});
  const GpuSampler sampler(quick());
  const auto seen =
      wait_for(sampler, [](const auto& s) { return s.gpus.size() == 1 && s.gpus[0].slow; });
  ASSERT_TRUE(seen.gpus.at(0).values);
  ASSERT_TRUE(seen.gpus[0].slow);
  EXPECT_EQ(seen.gpus[0].condition, GpuCondition::ok);
  EXPECT_TRUE(seen.gpus[0].values->utilization);
  EXPECT_FALSE(seen.gpus[0].values->power_watts);
  EXPECT_FALSE(seen.gpus[0].values->temperature_celsius);
  EXPECT_FALSE(seen.gpus[0].slow->pcie_receive_bytes_per_second);
  EXPECT_FALSE(seen.events);
}

TEST(GpuSampler, ALostGpuLosesItsValuesAndNoOtherDoes) {
  FakeNvml fake;
  const GpuSampler sampler(quick());
  wait_for(sampler, all_have_pcie);
  fake.show({{"gpus", {{"3", {{"fail", "lost"}}}}}});
  auto seen =
      wait_for(sampler, [](const auto& s) { return s.gpus[3].condition == GpuCondition::lost; });
  EXPECT_EQ(seen.gpus[3].condition, GpuCondition::lost);
  EXPECT_FALSE(seen.gpus[3].values);
  EXPECT_EQ(seen.gpus[3].detail, "GPU is lost");
  EXPECT_EQ(seen.gpus[3].uuid, "GPU-fa4e0000-0000-0000-0000-000000000003");
  for (std::size_t i : {0u, 1u, 2u, 4u, 5u, 6u, 7u}) EXPECT_TRUE(seen.gpus[i].values) << i;

  fake.show(json::object());
  seen = wait_for(sampler, [](const auto& s) { return s.gpus[3].values.has_value(); });
  EXPECT_EQ(seen.gpus[3].condition, GpuCondition::ok);
  EXPECT_TRUE(seen.gpus[3].values);
}

TEST(GpuSampler, AHungGpuBlocksNobodyAndItsValuesGo) {
  FakeNvml fake;
  const GpuSampler sampler(quick());
  wait_for(sampler, [](const auto& s) { return all_have_pcie(s) && s.events; });
  fake.show({{"gpus", {{"5", {{"fail", "hung"}}}, {"0", {{"utilization", 77}}}}}});
  auto seen = wait_for(sampler, [](const auto& s) {
    return s.gpus[5].condition == GpuCondition::hung && s.gpus[0].values &&
           s.gpus[0].values->utilization == 0.77;
  });
  EXPECT_EQ(seen.gpus[5].condition, GpuCondition::hung);
  EXPECT_FALSE(seen.gpus[5].values);
  EXPECT_GT(*seen.gpus[5].sample_age, 100ms);
  ASSERT_TRUE(seen.gpus[0].values);
  EXPECT_DOUBLE_EQ(*seen.gpus[0].values->utilization, 0.77);
  EXPECT_TRUE(seen.events);

  fake.show(json::object());
  seen = wait_for(sampler, [](const auto& s) { return s.gpus[5].values.has_value(); });
  EXPECT_TRUE(seen.gpus[5].values);
}

TEST(GpuSampler, AnUnknownErrorIsAnErrorAndPasses) {
  FakeNvml fake;
  const GpuSampler sampler(quick());
  wait_for(sampler, all_have_pcie);
  fake.show({{"gpus", {{"1", {{"fail", "unknown"}}}, {"2", {{"fail", "no_permission"}}}}}});
  auto seen = wait_for(sampler, [](const auto& s) {
    return s.gpus[1].condition == GpuCondition::error &&
           s.gpus[2].condition == GpuCondition::no_permission;
  });
  EXPECT_EQ(seen.gpus[1].condition, GpuCondition::error);
  EXPECT_EQ(seen.gpus[2].condition, GpuCondition::no_permission);
  EXPECT_FALSE(seen.gpus[1].values);
  EXPECT_FALSE(seen.gpus[2].values);
}

TEST(GpuSampler, SlowPcieCountersDontDelayTheRest) {
  FakeNvml fake;
  fake.show({{"gpus", {{"0", {{"pcie_delay_ms", 150}, {"utilization", 42}, {"pcie_rx_kb", 5}}}}}});
  const GpuSampler sampler(quick());
  const auto seen = wait_for(sampler, [](const auto& s) {
    return s.gpus.size() == 8 && s.gpus[0].values && s.gpus[0].slow &&
           s.gpus[0].slow->pcie_receive_bytes_per_second;
  });
  EXPECT_EQ(seen.gpus.at(0).condition, GpuCondition::ok);
  EXPECT_DOUBLE_EQ(seen.gpus[0].values->utilization.value_or(-1), 0.42);
  ASSERT_TRUE(seen.gpus[0].slow);
  EXPECT_DOUBLE_EQ(seen.gpus[0].slow->pcie_receive_bytes_per_second.value_or(-1), 5000);
  EXPECT_GE(seen.gpus[0].slow->pcie_took.value_or(0s), 300ms);
  EXPECT_LT(*seen.gpus[0].sample_took, 150ms);
}

TEST(GpuSampler, CountsTheSameXidTwice) {
  FakeNvml fake;
  const GpuSampler sampler(quick());
  wait_for(sampler, [](const auto& s) { return s.events; });
  fake.show({{"xids",
              {{{"id", 1}, {"gpu", 2}, {"xid", 79}},
               {{"id", 2}, {"gpu", 2}, {"xid", 79}},
               {{"id", 3}, {"gpu", 4}, {"xid", 13}}}}});
  const auto seen = wait_for(sampler, [](const auto& s) {
    return s.gpus[2].xids.count(79) > 0 && s.gpus[2].xids.at(79).events == 2 &&
           s.gpus[4].xids.count(13) > 0;
  });
  EXPECT_EQ(seen.gpus[2].xids.at(79).events, 2u);
  EXPECT_EQ(seen.gpus[4].xids.at(13).events, 1u);
  EXPECT_LT(std::chrono::system_clock::now() - seen.gpus[2].xids.at(79).last, 60s);
  EXPECT_TRUE(seen.gpus[0].xids.empty());
}

TEST(GpuSampler, BusyOverObservedIsTheMeanUtilization) {
  FakeNvml fake;
  fake.show({{"count", 1}, {"gpus", {{"0", {{"utilization", 25}}}}}});
  const GpuSampler sampler(quick());
  const auto seen = wait_for(
      sampler, [](const auto& s) { return s.gpus.size() == 1 && s.gpus[0].observed > 200ms; });
  ASSERT_GT(seen.gpus.at(0).observed.count(), 0);
  EXPECT_NEAR(seen.gpus[0].busy / seen.gpus[0].observed, 0.25, 1e-9);
}

struct WholeFailure {
  json show;
  NvmlFailure failure;
};

class GpuSamplerFails : public testing::TestWithParam<WholeFailure> {};

TEST_P(GpuSamplerFails, SaysWhyAndComesBackWhenItIsOver) {
  FakeNvml fake;
  fake.show(GetParam().show);
  const GpuSampler sampler(quick());
  auto seen = wait_for(
      sampler, [](const auto& s) { return s.failure && s.failure->failure == GetParam().failure; });
  ASSERT_TRUE(seen.failure);
  EXPECT_EQ(nvml_failure_name(seen.failure->failure), nvml_failure_name(GetParam().failure));
  EXPECT_FALSE(seen.failure->detail.empty());
  EXPECT_TRUE(seen.gpus.empty());
  EXPECT_FALSE(seen.events);

  fake.show(json::object());
  seen = wait_for(sampler, all_have_pcie);
  EXPECT_FALSE(seen.failure);
  EXPECT_EQ(seen.gpus.size(), 8u);
}

INSTANTIATE_TEST_SUITE_P(
    Each, GpuSamplerFails,
    testing::Values(WholeFailure{{{"init", "driver_mismatch"}}, NvmlFailure::driver_mismatch},
                    WholeFailure{{{"init", "driver_not_loaded"}}, NvmlFailure::driver_not_loaded},
                    WholeFailure{{{"init", "no_permission"}}, NvmlFailure::no_permission},
                    WholeFailure{{{"init", "unknown"}}, NvmlFailure::error},
                    WholeFailure{{{"init", "hung"}}, NvmlFailure::hung},
                    WholeFailure{{{"count", 0}}, NvmlFailure::no_gpu}));

TEST(GpuSampler, ANewBeginningWhenEveryGpuFails) {
  FakeNvml fake;
  const GpuSampler sampler(quick());
  wait_for(sampler, all_have_pcie);
  json gpus;
  for (int i = 0; i < 8; ++i) gpus[std::to_string(i)] = {{"fail", "unknown"}};
  fake.show({{"gpus", gpus}, {"init", "driver_mismatch"}});
  const auto seen = wait_for(sampler, [](const auto& s) { return s.failure.has_value(); });
  ASSERT_TRUE(seen.failure);
  EXPECT_EQ(seen.failure->failure, NvmlFailure::driver_mismatch);
  for (const GpuSnapshot& gpu : seen.gpus) EXPECT_FALSE(gpu.values) << gpu.index;
  fake.show(json::object());
  EXPECT_TRUE(all_have_pcie(wait_for(sampler, all_have_pcie)));
}

TEST(GpuSampler, SaysThatThereIsNoLibrary) {
  const GpuSampler sampler(quick("/nowhere/libnvidia-ml.so.1"));
  const auto seen =
      wait_for(sampler, [](const auto& s) { return s.failure->failure != NvmlFailure::starting; });
  EXPECT_EQ(seen.failure->failure, NvmlFailure::library_missing);
  EXPECT_NE(seen.failure->detail.find("/nowhere/libnvidia-ml.so.1"), std::string::npos);
}

TEST(GpuSampler, SaysThatALibraryIsAnotherOne) {
  const GpuSampler sampler(quick("libz.so.1"));
  const auto seen =
      wait_for(sampler, [](const auto& s) { return s.failure->failure != NvmlFailure::starting; });
  EXPECT_EQ(seen.failure->failure, NvmlFailure::library_unfit);
}

TEST(ListGpus, NamesThemAndTheirArchitecture) {
  const FakeNvml fake;
  const auto list = list_gpus(FakeNvml::library());
  ASSERT_TRUE(list);
  ASSERT_EQ(list->gpus.size(), 8u);
  EXPECT_EQ(list->gpus[7].arch, "120");
  EXPECT_EQ(list->gpus[7].uuid, "GPU-fa4e0000-0000-0000-0000-000000000007");
  EXPECT_EQ(list->driver, "580.95.05");
}

TEST(ListGpus, RefusesInTimeWhereNvmlHangs) {
  FakeNvml fake;
  fake.show({{"init", "hung"}});
  const auto list = list_gpus(FakeNvml::library(), 50ms);
  ASSERT_FALSE(list);
  EXPECT_EQ(list.error().code, ExitCode::refused);
  EXPECT_FALSE(list.error().hint.empty());
  fake.show(json::object());
}

}  // namespace
}  // namespace kdtree
