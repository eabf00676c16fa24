// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "agent/cli/bench_report.h"

namespace kdtree {
namespace {

TEST(BenchShapes, LengthsAndBatches) {
  const auto shapes = parse_shapes("1k,65000,16k:4");
  ASSERT_TRUE(shapes) << shapes.error().what;
  EXPECT_EQ(*shapes, (std::vector<BenchShape>{{1000, 1}, {65000, 1}, {16000, 4}}));
}

TEST(BenchShapes, NamesWhatIsWrong) {
  for (const char* text : {"", "1k,", "x", "0", "-1", "1k:0", "1k:300", "3000k", "1.5k", "1kk"}) {
    const auto shapes = parse_shapes(text);
    ASSERT_FALSE(shapes) << text;
    EXPECT_EQ(shapes.error().code, ExitCode::usage);
    EXPECT_NE(shapes.error().what.find("is not a number from 1 to"), std::string::npos) << text;
  }
}

BenchRun run_with(const std::vector<double>& seconds, std::optional<long> verifies, long tokens) {
  BenchRun run;
  for (std::size_t i = 0; i < seconds.size(); ++i)
    run.seen.push_back({seconds[i], 1 + tokens * static_cast<long>(i)});
  run.verifies = verifies;
  run.chunks_in_all = static_cast<long>(seconds.size());
  return run;
}

TEST(BenchSteps, TheFirstStepsAreLeftOut) {
  const auto point = step_time({1000, 1}, {run_with({0, 5, 6, 6.1, 6.2, 6.3, 6.4}, 6, 4)});
  ASSERT_TRUE(point) << point.error().what;
  EXPECT_NEAR(point->ms, 100, 1e-6);
  EXPECT_NEAR(point->tokens_per_s, 40, 1e-6);
  EXPECT_NEAR(point->tokens_a_step, 4, 1e-9);
  EXPECT_EQ(point->steps, 4);
}

TEST(BenchSteps, ChunksOfSeveralStepsAreScaledByTheEnginesCount) {
  std::vector<double> seconds(11);
  for (std::size_t i = 0; i < seconds.size(); ++i) seconds[i] = static_cast<double>(i) / 10;
  const auto point = step_time({1000, 1}, {run_with(seconds, 20, 8)});
  ASSERT_TRUE(point);
  EXPECT_NEAR(point->ms, 50, 1e-6);
}

TEST(BenchSteps, OnlyTheTimeInWhichAllRanCounts) {
  std::vector<double> early, late;
  for (int i = 0; i < 101; ++i) early.push_back(i / 10.0);
  for (int i = 0; i < 21; ++i) late.push_back(8 + i / 10.0);
  const auto point = step_time({1000, 2}, {run_with(early, 100, 4), run_with(late, 20, 4)});
  ASSERT_TRUE(point);
  EXPECT_NEAR(point->ms, 100, 1e-6);
  EXPECT_NEAR(point->tokens_per_s, 80, 1e-6);
  EXPECT_EQ(point->steps, 18);
}

TEST(BenchSteps, TooShortIsAnError) {
  EXPECT_FALSE(step_time({1000, 1}, {run_with({0, 1}, 1, 4)}));
  EXPECT_FALSE(
      step_time({1000, 2}, {run_with({0, 1, 2, 3}, 3, 4), run_with({9, 10, 11, 12}, 3, 4)}));
}

BenchReport report(const std::string& mode, double ms, const std::string& gpu) {
  BenchReport made{.engine = "http://127.0.0.1:1",
                   .date = "2026-11-30T00:00:00Z",
                   .mode = mode,
                   .release = "r1",
                   .engine_version = "0.5.17",
                   .gpus = {gpu},
                   .points = {}};
  made.points.push_back(
      {.shape = {1000, 1}, .ms = ms, .tokens_per_s = 40, .tokens_a_step = 4, .steps = 30});
  return made;
}

TEST(BenchReport, SurvivesJson) {
  const auto read = parse_report(to_json(report("off", 21.8, "GPU-1")).dump(), "file");
  ASSERT_TRUE(read) << read.error().what;
  EXPECT_EQ(to_json(*read), to_json(report("off", 21.8, "GPU-1")));
}

TEST(BenchReport, RefusesWhatIsNone) {
  for (const char* text :
       {"", "[]", "{}", R"({"format": 2})", R"({"format": 1, "gpus": [], "points": [{"ms": 1}]})"})
    EXPECT_FALSE(parse_report(text, "f")) << text;
}

TEST(BenchTable, TwoModesBesideEachOther) {
  const auto off = report("off", 21.8, "GPU-1");
  const auto table = make_table(report("on", 7.27, "GPU-1"), &off);
  ASSERT_TRUE(table) << table.error().what;
  EXPECT_EQ(table->header.back(), "off / on");
  EXPECT_EQ(table->rows[0][2], "21.80");
  EXPECT_EQ(table->rows[0].back(), "3.0x");
}

TEST(BenchTable, OtherGpusAreRefused) {
  const auto off = report("off", 21.8, "GPU-2");
  const auto table = make_table(report("on", 7.27, "GPU-1"), &off);
  ASSERT_FALSE(table);
  EXPECT_NE(table.error().what.find("GPU-2 instead of GPU-1"), std::string::npos);
}

}  // namespace
}  // namespace kdtree
