// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <random>
#include <set>
#include <vector>

#include "agent/metrics/moe_uniform.h"

namespace kdtree {
namespace {

// Against draws without replacement, a generator and a seed.
struct Routing {
  int experts, groups, top_k, tokens;
};

class UniformRouting : public testing::TestWithParam<Routing> {};

TEST_P(UniformRouting, IsWhatDrawsGive) {
  const auto [experts, groups, top_k, tokens] = GetParam();
  std::mt19937 draw(7);
  std::vector<int> order(static_cast<std::size_t>(experts));
  std::iota(order.begin(), order.end(), 0);
  const int runs = 200'000 / (tokens + 40);
  double peak = 0;
  double unique = 0;
  double idle = 0;
  for (int run = 0; run < runs; ++run) {
    std::vector<int> load(static_cast<std::size_t>(groups));
    std::set<int> used;
    for (int token = 0; token < tokens; ++token)
      for (int i = 0; i < top_k; ++i) {
        const int at = std::uniform_int_distribution<int>(i, experts - 1)(draw);
        std::swap(order[static_cast<std::size_t>(i)], order[static_cast<std::size_t>(at)]);
        const int expert = order[static_cast<std::size_t>(i)];
        ++load[static_cast<std::size_t>(expert / (experts / groups))];
        used.insert(expert);
      }
    peak += *std::max_element(load.begin(), load.end()) * groups / double(tokens * top_k);
    unique += static_cast<double>(used.size());
    idle += static_cast<double>(std::count(load.begin(), load.end(), 0)) / groups;
  }
  EXPECT_NEAR(uniform_peak_load(experts, groups, top_k, tokens) / (peak / runs), 1, 0.02);
  EXPECT_NEAR(uniform_unique_experts(experts, top_k, tokens) / (unique / runs), 1, 0.01);
  EXPECT_NEAR(uniform_idle_share(experts, groups, top_k, tokens), idle / runs, 0.01);
}

INSTANTIATE_TEST_SUITE_P(Each, UniformRouting,
                         testing::Values(Routing{384, 8, 8, 1}, Routing{384, 8, 8, 9},
                                         Routing{384, 8, 8, 31}, Routing{384, 8, 8, 33},
                                         Routing{384, 2, 8, 9}, Routing{256, 8, 8, 1},
                                         Routing{256, 8, 8, 128}, Routing{64, 8, 6, 2}));

TEST(UniformRouting, ThePageOfTheAlertSaysItsNumbers) {  // runbooks/KdtreeMoeImbalance.md
  EXPECT_NEAR(uniform_peak_load(384, 8, 8, 1), 2.6, 0.05);
  EXPECT_NEAR(uniform_idle_share(384, 8, 8, 1), 1.0 / 3, 0.02);
  EXPECT_NEAR(uniform_peak_load(384, 8, 8, 9), 1.5, 0.05);
  EXPECT_LT(uniform_idle_share(384, 8, 8, 9), 0.001);
}

TEST(UniformRouting, TheTwoWaysMeet) {
  // On both sides of 256 assignments.
  EXPECT_NEAR(uniform_peak_load(384, 8, 8, 31.9) / uniform_peak_load(384, 8, 8, 32), 1, 0.02);
  EXPECT_EQ(uniform_peak_load(384, 1, 8, 9), 1);
}

}  // namespace
}  // namespace kdtree
