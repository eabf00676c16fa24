// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include "agent/gate/ranks.h"
#include "tests/unit/gate_host.h"

namespace kdtree {
namespace {

StatsFile file_of(int rank, std::int64_t pid, std::uint64_t started = 1) {
  StatsFile file;
  file.outcome = StatsOutcome::ok;
  file.stats.emplace();
  file.stats->pid = pid;
  file.stats->pid_start_ticks = started;
  file.stats->patch_state = PatchState::active;
  if (rank >= 0) file.stats->tp_rank = rank;
  file.writer = StatsWriter{pid, file.stats->tp_rank};
  return file;
}

StatsFile gone(StatsOutcome outcome, int rank, std::int64_t pid) {
  StatsFile file;
  file.outcome = outcome;
  file.writer = StatsWriter{pid, rank};
  return file;
}

TEST(Ranks, EveryExpectedRankHasItsPlace) {
  StatsDir dir;
  dir.files = {file_of(2, 12), file_of(0, 10), file_of(-1, 9)};
  const auto set = sort_by_rank(dir, 3);
  ASSERT_EQ(set.ranks.size(), 3u);
  EXPECT_EQ(set.ranks[0].stats->pid, 10);
  EXPECT_FALSE(set.ranks[1].stats);
  EXPECT_EQ(set.ranks[1].missing, "no stats file");
  EXPECT_EQ(set.ranks[2].stats->pid, 12);
  EXPECT_EQ(set.present(), 2);
  ASSERT_EQ(set.others.size(), 1u);
  EXPECT_TRUE(set.conflicts.empty());
}

TEST(Ranks, ADeadOrSilentProcessIsNamedAndNotShown) {
  StatsDir dir;
  dir.files = {gone(StatsOutcome::dead, 0, 10), gone(StatsOutcome::stale, 1, 11)};
  const auto set = sort_by_rank(dir, 2);
  EXPECT_EQ(set.present(), 0);
  EXPECT_EQ(set.ranks[0].missing, "process 10 has ended");
  EXPECT_EQ(set.ranks[1].missing, "process 11 is silent");
  EXPECT_TRUE(set.unreadable.empty());
}

TEST(Ranks, TheLivingProcessHidesItsDeadPredecessor) {
  StatsDir dir;
  dir.files = {gone(StatsOutcome::dead, 0, 10), file_of(0, 20)};
  const auto set = sort_by_rank(dir, 1);
  EXPECT_EQ(set.ranks[0].stats->pid, 20);
  EXPECT_EQ(set.ranks[0].missing, "");
}

TEST(Ranks, TwoLivingProcessesOfOneRankAreAConflictAndTheYoungerIsShown) {
  StatsDir dir;
  dir.files = {file_of(0, 20, 200), file_of(0, 10, 100)};
  const auto set = sort_by_rank(dir, 1);
  EXPECT_EQ(set.ranks[0].stats->pid, 20);
  EXPECT_EQ(set.conflicts.size(), 1u);
}

TEST(Ranks, ARankBeyondThoseExpectedIsAConflict) {
  StatsDir dir;
  dir.files = {file_of(0, 10), file_of(1, 11)};
  const auto set = sort_by_rank(dir, 1);
  ASSERT_EQ(set.conflicts.size(), 1u);
  EXPECT_NE(set.conflicts[0].find("engine.ranks is 1"), std::string::npos);
}

TEST(Ranks, FilesThatCannotBeReadAreKeptApart) {
  StatsDir dir;
  dir.files.emplace_back().outcome = StatsOutcome::foreign;
  const auto set = sort_by_rank(dir, 1);
  EXPECT_EQ(set.unreadable.size(), 1u);
}

TEST(Ranks, ReadsWhatIsOnTheDisk) {
  test::Folder folder;
  for (int rank = 0; rank < 2; ++rank)
    test::write_rank(folder, std::to_string(rank), test::rank_header(rank, "r1", Mode::off));
  auto set = read_ranks(folder.root(), 2);
  ASSERT_TRUE(set) << set.error().what;
  EXPECT_EQ(set->armed(), 2);
}

TEST(Ranks, NoFolderMeansNobodySpeaks) {
  test::Folder folder;
  auto set = read_ranks(folder.root(), 2);
  ASSERT_TRUE(set) << set.error().what;
  EXPECT_EQ(set->present(), 0);
}

}  // namespace
}  // namespace kdtree
