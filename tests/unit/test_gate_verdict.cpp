// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <limits>

#include "agent/gate/verdict.h"

namespace kdtree {
namespace {

class VerdictTest : public testing::Test {
 protected:
  VerdictTest() {
    limits.min_compares = 100;
    limits.max_ulp = 4;
    limits.mean_ulp = 0.5;
    for (int rank = 0; rank < 2; ++rank) {
      RankStats stats;
      stats.pid = 10 + rank;
      stats.tp_rank = rank;
      stats.release_id = "r1";
      stats.engine_version = "0.5.17";
      stats.engine_fingerprint = "f";
      stats.patch_state = PatchState::active;
      stats.compares = 100u + static_cast<unsigned>(rank);
      stats.max_abs = 0.001;
      stats.max_ulp = 1.0 + rank;
      stats.sum_mean_ulp = 0.1 * static_cast<double>(stats.compares);
      stats.max_mean_ulp = 0.2 + 0.1 * rank;
      stats.longest_prefix = 1000;
      stats.batches = {{1, 60, 60}, {4, 40, 40}};
      set.ranks.push_back({rank, stats, ""});
    }
  }
  RankStats& stats(std::size_t rank) { return *set.ranks[rank].stats; }
  Verdict judge() const { return judge_ranks(set, "r1", limits); }

  RankSet set;
  ValidateConfig limits;
};

TEST_F(VerdictTest, CleanWhenEveryRankComparedEnough) {
  const auto verdict = judge();
  EXPECT_EQ(verdict.kind, VerdictKind::clean);
  EXPECT_TRUE(verdict.reasons.empty());
  EXPECT_EQ(verdict.compares, 201u);
  EXPECT_EQ(verdict.fewest_compares, 100u);
  EXPECT_EQ(verdict.longest_prefix, 1000u);
  EXPECT_EQ(verdict.max_ulp, 2.0);
  EXPECT_NEAR(*verdict.mean_ulp, 0.1, 1e-12);
  EXPECT_NEAR(*verdict.max_mean_ulp, 0.3, 1e-12);
  EXPECT_EQ(verdict.batches.at(1), 120u);
  EXPECT_EQ(verdict.batches.at(4), 80u);
  EXPECT_EQ(verdict.engine_version, "0.5.17");
}

TEST_F(VerdictTest, OneRankShortOfComparesIsInsufficient) {
  stats(1).compares = 99;
  const auto verdict = judge();
  EXPECT_EQ(verdict.kind, VerdictKind::insufficient);
  ASSERT_EQ(verdict.reasons.size(), 1u);
  EXPECT_EQ(verdict.reasons[0], "rank 1: 99 compares, 100 needed");
}

TEST_F(VerdictTest, AMissingRankIsInsufficient) {
  set.ranks[1].stats.reset();
  set.ranks[1].missing = "process 11 is silent";
  EXPECT_EQ(judge().kind, VerdictKind::insufficient);
  EXPECT_EQ(judge().fewest_compares, 0u);
}

TEST_F(VerdictTest, ARankThatStoodAsideIsInsufficient) {
  stats(0).patch_state = PatchState::refused;
  stats(0).reason = "kernel raised";
  const auto verdict = judge();
  EXPECT_EQ(verdict.kind, VerdictKind::insufficient);
  EXPECT_EQ(verdict.reasons[0], "rank 0: refused: kernel raised");
}

TEST_F(VerdictTest, ComparesOfAnotherReleaseDoNotCount) {
  stats(0).release_id = "r0";
  const auto verdict = judge();
  EXPECT_EQ(verdict.kind, VerdictKind::insufficient);
  EXPECT_EQ(verdict.compares, 101u);
}

TEST_F(VerdictTest, OneMismatchIsAMismatchHoweverLittleWasCompared) {
  stats(1).compares = 3;
  stats(1).mismatches = 1;
  stats(1).worst_layer = 17;
  const auto verdict = judge();
  EXPECT_EQ(verdict.kind, VerdictKind::mismatch);
  EXPECT_NE(verdict.reasons[0].find("1 of 3 compares over tolerance: "), std::string::npos);
}

TEST_F(VerdictTest, TheWorstCompareIsNamed) {
  stats(1).mismatches = 1;
  stats(1).worst_layer = 17;
  stats(1).worst_request = 2;
  stats(1).worst_batch = 4;
  stats(1).worst_head = 5;
  stats(1).worst_prefix = 4100;
  EXPECT_EQ(
      judge().reasons.at(0),
      "rank 1: 1 of 101 compares over tolerance: largest difference 2 ULP (limit 4), mean of "
      "a request up to 0.3 ULP (limit 0.5), worst in layer 17, request 2 of 4, head 5, prefix "
      "4100");
  EXPECT_EQ(judge().ranks.at(1).worst_request, 2);
  EXPECT_EQ(judge().ranks.at(1).worst_batch, 4);
  EXPECT_EQ(judge().ranks.at(1).worst_head, 5);
}

TEST_F(VerdictTest, ABatchSizeThatServedAndWasNeverComparedIsInsufficient) {
  stats(0).batches = {{1, 60, 60}, {4, 0, 7}, {8, 0, 0}, {16, 0, 1}};
  EXPECT_EQ(judge().kind, VerdictKind::insufficient);
  EXPECT_EQ(judge().reasons.at(0),
            "rank 0: batch sizes that served and were never compared: 4, 16");
  stats(0).batches = {{0, 0, 3}, {1, 60, 60}};
  EXPECT_EQ(judge().reasons.at(0),
            "rank 0: batch sizes that served and were never compared: larger");
  stats(0).batches = {{1, 60, 60}, {4, 1, 7}};
  EXPECT_EQ(judge().kind, VerdictKind::clean);
}

TEST_F(VerdictTest, CallsHandedBackForAnErrorAreNeverClean) {
  stats(0).handed_back[KDTREE_BACK_ERROR] = 61;
  stats(0).reason = "kernel: batch of 4, layer 3: no";
  EXPECT_EQ(judge().kind, VerdictKind::insufficient);
  EXPECT_EQ(judge().reasons.at(0),
            "rank 0: 61 calls handed back because kdtree's kernel failed: kernel: batch of 4, "
            "layer 3: no");
  stats(0).handed_back = {};
  stats(0).handed_back[KDTREE_BACK_SINKS] = 61;
  EXPECT_EQ(judge().kind, VerdictKind::clean);
}

TEST_F(VerdictTest, ADifferenceOverTheLimitsIsAMismatchEvenIfTheEngineCountedNone) {
  stats(0).max_ulp = 4.5;
  EXPECT_EQ(judge().kind, VerdictKind::mismatch);
  stats(0).max_ulp = 4.0;
  EXPECT_EQ(judge().kind, VerdictKind::clean);
  stats(0).max_mean_ulp = 0.51;
  EXPECT_EQ(judge().kind, VerdictKind::mismatch);
}

TEST_F(VerdictTest, NotANumberIsNeverClean) {
  stats(0).max_ulp = std::numeric_limits<double>::quiet_NaN();
  EXPECT_EQ(judge().kind, VerdictKind::mismatch);
  stats(0).max_ulp.reset();
  EXPECT_EQ(judge().kind, VerdictKind::insufficient);
}

TEST_F(VerdictTest, RanksOfTwoEnginesHaveNoCommonFingerprint) {
  stats(1).engine_fingerprint = "g";
  EXPECT_EQ(judge().engine_fingerprint, "");
  EXPECT_NE(judge().kind, VerdictKind::clean);
}

TEST_F(VerdictTest, TwoProcessesOfOneRankAreNotClean) {
  set.conflicts.emplace_back("processes 1 and 2 both say that they are rank 0");
  EXPECT_EQ(judge().kind, VerdictKind::insufficient);
}

TEST_F(VerdictTest, NothingExpectedIsNotClean) {
  set.ranks.clear();
  EXPECT_EQ(judge().kind, VerdictKind::insufficient);
}

}  // namespace
}  // namespace kdtree
