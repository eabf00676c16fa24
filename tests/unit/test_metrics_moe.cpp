// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include "agent/metrics/collect.h"
#include "agent/metrics/moe_uniform.h"
#include "agent/metrics/scrape_text.h"

namespace kdtree {
namespace {

using namespace std::chrono_literals;
using Time = std::chrono::steady_clock::time_point;

// As the engine's processes count by rank and step.
void count_steps(MoeStats& moe, int ranks) {
  const std::size_t cells = moe.layers * static_cast<std::size_t>(ranks);
  moe.step_ranks = static_cast<std::uint32_t>(ranks);
  moe.idle_ranks.assign(cells, 1);
  moe.stragglers.assign(cells, KDTREE_STATS_SHARE / 4);
  moe.peaks.assign(moe.layers, 2);
}

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
  count_steps(*rank.moe, ep_size > 1 ? ep_size : 4);
  return rank;
}

std::map<std::string, double> scrape(const RankStats& rank, MoeTracker& window, Time now,
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
  follow_moe(window, view, now);
  add_moe_metrics(out, view, window);
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
  MoeTracker window;
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
  EXPECT_EQ(seen.count("kdtree_moe_peak_load_ratio"), 0u);  // nothing to compare with yet
}

TEST(MoeMetrics, SlicesOfAGroupShowTheGroup) {
  MoeTracker window;
  const auto seen = scrape(moe_rank(2, {1, 2, 3, 4, 0, 0, 0, 0}), window, Time{});
  EXPECT_EQ(seen.at("kdtree_moe_rank_tokens_total|0"), 3);
  EXPECT_EQ(seen.at("kdtree_moe_rank_tokens_total|1"), 3);
  EXPECT_EQ(seen.at("kdtree_moe_rank_tokens_total|2"), 7);
  EXPECT_EQ(seen.at("kdtree_moe_rank_tokens_total|3"), 7);
}

TEST(MoeMetrics, Ep1IsEvenAndHasNoLayerByRank) {
  MoeTracker window;
  scrape(moe_rank(1, ExpertTable(8)), window, Time{});
  const auto seen = scrape(moe_rank(1, {8, 0, 0, 0, 1, 1, 1, 1}), window, Time{} + 5s);
  for (const char* rank : {"0", "1", "2", "3"})
    EXPECT_EQ(seen.at(std::string("kdtree_moe_rank_tokens_total|") + rank), 12);
  EXPECT_EQ(seen.at("kdtree_moe_peak_load_ratio"), 1);
  for (const auto& [key, value] : seen) {
    EXPECT_FALSE(key.starts_with("kdtree_moe_layer_rank_tokens_total")) << key;
    EXPECT_FALSE(key.starts_with("kdtree_moe_rank_idle_layer_steps_total")) << key;
    EXPECT_FALSE(key.starts_with("kdtree_moe_layer_peak_load_ratio")) << key;
  }
}

TEST(MoeMetrics, WhereExpertsMoveNoRankLoadIsInvented) {
  RankStats rank = moe_rank(4, {1, 2, 3, 4, 0, 0, 0, 0});
  rank.moe->idle_ranks.clear();
  rank.moe->step_ranks = 0;
  MoeTracker window;
  auto seen = scrape(rank, window, Time{});
  EXPECT_EQ(seen.count("kdtree_moe_rank_tokens_total|0"), 0u);
  EXPECT_EQ(seen.at("kdtree_moe_layer_tokens_total|1"), 10);
  seen = scrape(rank, window, Time{}, 4);  // the operator says how they lie
  EXPECT_EQ(seen.at("kdtree_moe_rank_tokens_total|3"), 4);
}

TEST(MoeMetrics, PeakIsOfTheLastThirtySecondsOnly) {
  MoeTracker window;
  ExpertTable tokens{100, 0, 0, 0, 100, 0, 0, 0};
  for (int second = 0; second <= 60; ++second) {
    if (second > 25)
      for (auto& count : tokens) count += 5;
    scrape(moe_rank(4, tokens), window, Time{} + std::chrono::seconds(second));
  }
  const auto seen = scrape(moe_rank(4, tokens), window, Time{} + 61s);
  EXPECT_EQ(seen.at("kdtree_moe_peak_load_ratio"), 1);
  EXPECT_EQ(seen.at("kdtree_moe_layer_peak_load_ratio|1"), 1);
  // Nothing was routed since: no peak at all.
  scrape(moe_rank(4, tokens), window, Time{} + 92s);
  scrape(moe_rank(4, tokens), window, Time{} + 93s);
  EXPECT_EQ(scrape(moe_rank(4, tokens), window, Time{} + 130s).count("kdtree_moe_peak_load_ratio"),
            0u);
}

TEST(MoeMetrics, PeakIsSumOfHighestsOverSumOfMeans) {
  MoeTracker window;
  scrape(moe_rank(4, ExpertTable(8)), window, Time{});
  const auto seen = scrape(moe_rank(4, {4, 0, 0, 0, 1, 1, 1, 1}), window, Time{} + 1s);
  EXPECT_DOUBLE_EQ(seen.at("kdtree_moe_peak_load_ratio"), (4 + 1) / (1.0 + 1.0));
  EXPECT_DOUBLE_EQ(seen.at("kdtree_moe_layer_peak_load_ratio|1"), 4);
}

TEST(MoeMetrics, ANewProcessBeginsANewWindow) {
  MoeTracker window;
  scrape(moe_rank(4, {9, 9, 9, 9, 9, 9, 9, 9}), window, Time{});
  RankStats next = moe_rank(4, {10, 0, 0, 0, 10, 0, 0, 0});
  next.pid = 2;
  EXPECT_EQ(scrape(next, window, Time{} + 1s).count("kdtree_moe_peak_load_ratio"), 0u);
}

TEST(MoeMetrics, SizesThatDontFitShowNoRankLoad) {
  MoeTracker window;
  const auto seen = scrape(moe_rank(4, ExpertTable(8, 1)), window, Time{}, 3);
  EXPECT_EQ(seen.count("kdtree_moe_rank_tokens_total|0"), 0u);
  EXPECT_EQ(seen.count("kdtree_moe_layer_tokens_total|1"), 1u);
}

TEST(MoeMetrics, Ep1SaysWhatOtherLayoutsWouldGive) {
  MoeTracker window;
  scrape(moe_rank(1, ExpertTable(8)), window, Time{});
  const auto seen = scrape(moe_rank(1, {6, 0, 1, 1, 2, 2, 2, 2}), window, Time{} + 5s);
  EXPECT_EQ(seen.at("kdtree_moe_what_if_layer_rank_tokens_total|4|1|0"), 6);
  EXPECT_EQ(seen.at("kdtree_moe_what_if_layer_rank_tokens_total|4|1|3"), 1);
  EXPECT_EQ(seen.count("kdtree_moe_what_if_layer_rank_tokens_total|2|1|0"), 0u);
  EXPECT_DOUBLE_EQ(seen.at("kdtree_moe_what_if_peak_load_ratio|4"), (6 + 2) / (2.0 + 2.0));
  EXPECT_DOUBLE_EQ(seen.at("kdtree_moe_what_if_peak_load_ratio|2"), (6 + 4) / (4.0 + 4.0));
  EXPECT_GT(seen.at("kdtree_moe_what_if_expected_peak_load_ratio|4"), 1);
}

TEST(MoeMetrics, WhatStepsWaitForIsWhatTheEngineCounted) {
  MoeTracker window;
  RankStats rank = moe_rank(4, ExpertTable(8));
  rank.moe->peaks = {30, 50};
  rank.moe->stragglers = {KDTREE_STATS_SHARE,
                          0,
                          KDTREE_STATS_SHARE / 2,
                          KDTREE_STATS_SHARE / 2,
                          KDTREE_STATS_SHARE,
                          0,
                          0,
                          0};
  const auto seen = scrape(rank, window, Time{});
  EXPECT_DOUBLE_EQ(seen.at("kdtree_moe_peak_tokens_total|1"), 30);
  EXPECT_DOUBLE_EQ(seen.at("kdtree_moe_peak_tokens_total|2"), 50);
  EXPECT_DOUBLE_EQ(seen.at("kdtree_moe_rank_straggler_layer_steps_total|0"), 2);
  EXPECT_DOUBLE_EQ(seen.at("kdtree_moe_rank_straggler_layer_steps_total|1"), 0);
  EXPECT_DOUBLE_EQ(seen.at("kdtree_moe_rank_straggler_layer_steps_total|3"), 0.5);
  for (const auto& [key, value] : seen)
    EXPECT_FALSE(key.starts_with("kdtree_moe_what_if_") && key.find("_layer_steps") != key.npos)
        << key;
}

TEST(MoeMetrics, AtEp1StepsAreThoseThatEpAsTpWouldHave) {
  MoeTracker window;
  const auto seen = scrape(moe_rank(1, ExpertTable(8)), window, Time{});
  EXPECT_DOUBLE_EQ(seen.at("kdtree_moe_what_if_peak_tokens_total|4|2"), 2);
  EXPECT_DOUBLE_EQ(seen.at("kdtree_moe_what_if_rank_straggler_layer_steps_total|4|3"), 0.5);
  EXPECT_DOUBLE_EQ(seen.at("kdtree_moe_what_if_rank_idle_layer_steps_total|4|0"), 2);
  EXPECT_EQ(seen.count("kdtree_moe_what_if_expected_idle_layer_steps_total|4"), 1u);
  EXPECT_EQ(seen.count("kdtree_moe_peak_tokens_total|1"), 0u);
  EXPECT_EQ(seen.count("kdtree_moe_rank_idle_layer_steps_total|0"), 0u);
}

TEST(MoeMetrics, WhatIsNotCountedByStepIsAbsent) {
  MoeTracker window;
  RankStats rank = moe_rank(4, ExpertTable(8));
  rank.moe->peaks.clear();
  for (const auto& [key, value] : scrape(rank, window, Time{})) {
    EXPECT_FALSE(key.starts_with("kdtree_moe_peak_tokens")) << key;
    EXPECT_FALSE(key.starts_with("kdtree_moe_expected_peak_tokens")) << key;
    EXPECT_EQ(key.find("_idle_layer_steps"), key.npos) << key;
    EXPECT_EQ(key.find("straggler"), key.npos) << key;
  }
}

// One step of one token and one of nine are not two steps of five.
TEST(MoeMetrics, EachStepIsExpectedAtItsOwnSize) {
  RankStats rank = moe_rank(4, ExpertTable(2 * 64));
  rank.moe->experts = 64;
  rank.moe->pass_rows = {1, 4, 9, 5, 0, 0};
  rank.moe->layer_steps = {9, 9};
  MoeTracker window;
  scrape(rank, window, Time{});
  rank.moe->pass_rows = {1, 5, 9, 6, 0, 0};
  rank.moe->layer_steps = {11, 9};
  rank.moe->expert_tokens[0] = 20;
  const auto seen = scrape(rank, window, Time{} + 1s);
  const auto expect = [&](const char* name, double one, double nine) {
    EXPECT_NEAR(seen.at(name), one + nine, 1e-9) << name;
  };
  expect("kdtree_moe_expected_unique_experts_total|1", uniform_unique_experts(64, 2, 1),
         uniform_unique_experts(64, 2, 9));
  expect("kdtree_moe_expected_idle_layer_steps_total", uniform_idle_share(64, 4, 2, 1),
         uniform_idle_share(64, 4, 2, 9));
  expect("kdtree_moe_expected_peak_tokens_total|1", 1 * 2 / 4.0 * uniform_peak_load(64, 4, 2, 1),
         9 * 2 / 4.0 * uniform_peak_load(64, 4, 2, 9));
  EXPECT_EQ(seen.at("kdtree_moe_expected_peak_tokens_total|2"), 0);
}

TEST(MoeMetrics, AStepsPeakOverTheLastThirtySeconds) {
  RankStats rank = moe_rank(4, ExpertTable(8));
  const std::optional<MoeLayout> layout = moe_layout(rank, std::nullopt);
  MoeTracker tracker;
  tracker.take(rank, layout, Time{});
  EXPECT_FALSE(tracker.step_peak());
  rank.moe->expert_tokens = {10, 10, 10, 10, 0, 0, 0, 0};  // even as a whole
  rank.moe->peaks[0] += 2 * 10;                            // and no step was
  rank.moe->layer_steps[0] += 10;
  tracker.take(rank, layout, Time{} + 5s);
  ASSERT_TRUE(tracker.step_peak());
  EXPECT_DOUBLE_EQ(tracker.step_peak()->observed, 20 / 10.0);
  EXPECT_NEAR(tracker.step_peak()->expected, uniform_peak_load(4, 4, 2, 2), 1e-9);
}

TEST(MoeMetrics, ExpectationsGrowWithTheStepsSeen) {
  MoeTracker window;
  RankStats rank = moe_rank(4, ExpertTable(8));
  rank.moe->layer_steps = {10, 10};
  scrape(rank, window, Time{});
  rank.moe->layer_steps = {14, 10};  // four steps of one token in layer 1
  rank.moe->expert_tokens = {8, 0, 0, 0, 0, 0, 0, 0};
  const auto seen = scrape(rank, window, Time{} + 1s);
  EXPECT_DOUBLE_EQ(seen.at("kdtree_moe_expected_unique_experts_total|1"), 4 * 2);
  EXPECT_DOUBLE_EQ(seen.at("kdtree_moe_expected_unique_experts_total|2"), 0);
  // One of four experts is a rank's own; a token with two of four leaves it out half the time.
  EXPECT_DOUBLE_EQ(seen.at("kdtree_moe_expected_idle_layer_steps_total"), 4 * 0.5);
}

TEST(MoeMetrics, CardinalityIsBounded) {
  for (const auto& [layers, ranks] :
       {std::pair{61, 8}, {61, 64}, {200, 16}, {256, 2}, {256, 1}, {1, 1}}) {
    for (const int ep_size : {1, ranks}) {
      RankStats rank = moe_rank(ep_size, {});
      rank.tp_size = ranks;
      const auto rows = static_cast<std::size_t>(layers);
      rank.moe->layers = static_cast<std::uint32_t>(layers);
      rank.moe->experts = 384;
      rank.moe->expert_tokens.assign(rows * 384, 7);
      rank.moe->unique_experts.assign(rows, 1);
      rank.moe->layer_steps.assign(rows, 1);
      count_steps(*rank.moe, ranks);
      MoeTracker tracker;
      scrape(rank, tracker, Time{});
      for (auto& tokens : rank.moe->expert_tokens) tokens += 5;
      const auto seen = scrape(rank, tracker, Time{} + 5s);
      EXPECT_LE(seen.size(), 1500u) << layers << " layers, EP " << ep_size;
      double tokens = 0;
      for (const auto& [key, value] : seen)
        if (key.starts_with("kdtree_moe_layer_tokens_total|")) tokens += value;
      EXPECT_EQ(tokens, layers * 384.0 * 12) << "no layer is left out";
    }
  }
}

TEST(MoeMetrics, NeighbouringLayersShareASeriesWhereThereAreTooMany) {
  MoeStats moe;
  moe.layers = 61;
  moe.first_layer = 1;
  EXPECT_EQ(layer_groups(moe, 8).size(), 61u);
  EXPECT_EQ(layer_groups(moe, 8).front().name, "1");
  const auto grouped = layer_groups(moe, 16);
  ASSERT_EQ(grouped.size(), 31u);
  EXPECT_EQ(grouped[0].name, "1-2");
  EXPECT_EQ(grouped.back().name, "61");
}

}  // namespace
}  // namespace kdtree
