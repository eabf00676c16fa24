// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include "agent/metrics/collect.h"
#include "agent/metrics/scrape_text.h"

namespace kdtree {
namespace {

using namespace std::chrono_literals;
using Time = std::chrono::steady_clock::time_point;

// Two layers of four experts on four ranks.
RankStats moe_rank(int ep_size, const ExpertTable& tokens) {
  RankStats rank;
  rank.pid = 1;
  rank.tp_rank = 0;
  rank.tp_size = 4;
  rank.moe_ep_size = ep_size;
  rank.moe.emplace();
  rank.moe->layers = 2;
  rank.moe->experts = 4;
  rank.moe->top_k = 2;
  rank.moe->first_layer = 1;
  rank.moe->steps = 3;
  rank.moe->tokens = 6;
  rank.moe->expert_tokens = tokens;
  rank.moe->unique_experts = {5, 6};
  rank.moe->layer_steps = {3, 3};
  rank.moe->idle_ranks.assign(2 * static_cast<std::size_t>(ep_size), 1);
  rank.moe->idle_ranks_width = static_cast<std::uint32_t>(ep_size);
  return rank;
}

std::map<std::string, double> scrape(const RankStats& rank, MoeWindow& window, Time now,
                                     std::optional<int> ep_override = std::nullopt) {
  HostView view;
  view.stats.emplace();
  StatsFile file;
  file.outcome = StatsOutcome::ok;
  file.stats = rank;
  view.stats->files = {file};
  view.config.emplace();
  view.config->moe.ep_size = ep_override;
  Exposition out;
  add_moe_metrics(out, view, window, now);
  std::map<std::string, double> values;
  const auto scraped = parse_scrape(as_text(out.families())).value();
  for (const Series& series : scraped) {
    std::string key = series.name;
    for (const auto& [name, value] : series.labels) key += "|" + value;
    values[key] = series.value;
  }
  return values;
}

TEST(MoeMetrics, EachRankHoldsItsExperts) {
  MoeWindow window;
  const auto seen = scrape(moe_rank(4, {1, 2, 3, 4, 10, 20, 30, 40}), window, Time{});
  EXPECT_EQ(seen.at("kdtree_moe_layout_info|4|4|2|4"), 1);  // ep_size, experts, top_k, tp_size
  EXPECT_EQ(seen.at("kdtree_moe_rank_tokens_total|0"), 11);
  EXPECT_EQ(seen.at("kdtree_moe_rank_tokens_total|3"), 44);
  EXPECT_EQ(seen.at("kdtree_moe_layer_rank_tokens_total|1|2"), 3);
  EXPECT_EQ(seen.at("kdtree_moe_layer_rank_tokens_total|2|2"), 30);
  EXPECT_EQ(seen.at("kdtree_moe_layer_tokens_total|2"), 100);
  EXPECT_EQ(seen.at("kdtree_moe_unique_experts_total|1"), 5);
  EXPECT_EQ(seen.at("kdtree_moe_layer_steps_total|1"), 3);
  EXPECT_EQ(seen.at("kdtree_moe_rank_idle_layer_steps_total|3"), 2);
  EXPECT_EQ(seen.at("kdtree_moe_steps_total"), 3);
  EXPECT_EQ(seen.at("kdtree_moe_tokens_total"), 6);
  EXPECT_EQ(seen.count("kdtree_moe_balance_ratio"), 0u);  // nothing to compare with yet
}

TEST(MoeMetrics, SlicesOfAGroupShowTheGroup) {
  MoeWindow window;
  const auto seen = scrape(moe_rank(2, {1, 2, 3, 4, 0, 0, 0, 0}), window, Time{});
  EXPECT_EQ(seen.at("kdtree_moe_rank_tokens_total|0"), 3);
  EXPECT_EQ(seen.at("kdtree_moe_rank_tokens_total|1"), 3);
  EXPECT_EQ(seen.at("kdtree_moe_rank_tokens_total|2"), 7);
  EXPECT_EQ(seen.at("kdtree_moe_rank_tokens_total|3"), 7);
}

TEST(MoeMetrics, Ep1IsEvenAndHasNoLayerByRank) {
  MoeWindow window;
  scrape(moe_rank(1, ExpertTable(8)), window, Time{});
  const auto seen = scrape(moe_rank(1, {8, 0, 0, 0, 1, 1, 1, 1}), window, Time{} + 5s);
  for (const char* rank : {"0", "1", "2", "3"})
    EXPECT_EQ(seen.at(std::string("kdtree_moe_rank_tokens_total|") + rank), 12);
  EXPECT_EQ(seen.at("kdtree_moe_balance_ratio"), 1);
  EXPECT_EQ(seen.at("kdtree_moe_layer_expert_balance_ratio|1"), 0.25);
  EXPECT_EQ(seen.at("kdtree_moe_layer_expert_balance_ratio|2"), 1);
  for (const auto& [key, value] : seen) {
    EXPECT_FALSE(key.starts_with("kdtree_moe_layer_rank_tokens_total")) << key;
    EXPECT_FALSE(key.starts_with("kdtree_moe_rank_idle_layer_steps_total")) << key;
    EXPECT_FALSE(key.starts_with("kdtree_moe_layer_balance_ratio")) << key;
  }
}

TEST(MoeMetrics, WhereExpertsMoveNoRankLoadIsInvented) {
  RankStats rank = moe_rank(4, {1, 2, 3, 4, 0, 0, 0, 0});
  rank.moe->idle_ranks.clear();
  rank.moe->idle_ranks_width = 0;
  MoeWindow window;
  auto seen = scrape(rank, window, Time{});
  EXPECT_EQ(seen.count("kdtree_moe_rank_tokens_total|0"), 0u);
  EXPECT_EQ(seen.at("kdtree_moe_layer_tokens_total|1"), 10);
  seen = scrape(rank, window, Time{}, 4);  // the operator says how they lie
  EXPECT_EQ(seen.at("kdtree_moe_rank_tokens_total|3"), 4);
}

TEST(MoeMetrics, BalanceIsOfTheLastThirtySecondsOnly) {
  MoeWindow window;
  ExpertTable tokens{100, 0, 0, 0, 100, 0, 0, 0};
  for (int second = 0; second <= 60; ++second) {
    if (second > 25)
      for (auto& count : tokens) count += 5;
    scrape(moe_rank(4, tokens), window, Time{} + std::chrono::seconds(second));
  }
  const auto seen = scrape(moe_rank(4, tokens), window, Time{} + 61s);
  EXPECT_EQ(seen.at("kdtree_moe_balance_ratio"), 1);
  EXPECT_EQ(seen.at("kdtree_moe_layer_balance_ratio|1"), 1);
  // Nothing was routed since: no balance at all.
  scrape(moe_rank(4, tokens), window, Time{} + 92s);
  scrape(moe_rank(4, tokens), window, Time{} + 93s);
  EXPECT_EQ(scrape(moe_rank(4, tokens), window, Time{} + 130s).count("kdtree_moe_balance_ratio"),
            0u);
}

TEST(MoeMetrics, BalanceIsSumOfMeansOverSumOfHighests) {
  MoeWindow window;
  scrape(moe_rank(4, ExpertTable(8)), window, Time{});
  const auto seen = scrape(moe_rank(4, {4, 0, 0, 0, 1, 1, 1, 1}), window, Time{} + 1s);
  EXPECT_DOUBLE_EQ(seen.at("kdtree_moe_balance_ratio"), (1.0 + 1.0) / (4 + 1));
  EXPECT_DOUBLE_EQ(seen.at("kdtree_moe_layer_balance_ratio|1"), 0.25);
}

TEST(MoeMetrics, ANewProcessBeginsANewWindow) {
  MoeWindow window;
  scrape(moe_rank(4, {9, 9, 9, 9, 9, 9, 9, 9}), window, Time{});
  RankStats next = moe_rank(4, {10, 0, 0, 0, 10, 0, 0, 0});
  next.pid = 2;
  EXPECT_EQ(scrape(next, window, Time{} + 1s).count("kdtree_moe_balance_ratio"), 0u);
}

TEST(MoeMetrics, SizesThatDontFitShowNoRankLoad) {
  MoeWindow window;
  const auto seen = scrape(moe_rank(4, ExpertTable(8, 1)), window, Time{}, 3);
  EXPECT_EQ(seen.count("kdtree_moe_rank_tokens_total|0"), 0u);
  EXPECT_EQ(seen.count("kdtree_moe_layer_tokens_total|1"), 1u);
}

}  // namespace
}  // namespace kdtree
