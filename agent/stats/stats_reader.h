// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <climits>
#include <cstddef>
#include <filesystem>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "agent/stats/rank_stats.h"
#include "agent/util/result.h"
#include "agent/util/root.h"

// Reads stats files (stats_abi.h) that any process of the engine's user may have written, on
// purpose or by accident: never blocks, never crashes, never follows a link, never shows a value of
// a process that is gone or silent.
namespace kdtree {

enum class StatsOutcome {
  ok,
  torn,         // the writer was in the middle of a publication each time we looked
  damaged,      // checksum or a field is wrong and stays wrong
  truncated,    // shorter than it says, or than a header
  foreign,      // not a stats file: wrong magic
  newer,        // written by another version of the format
  dead,         // whole, but its process has ended (or its pid belongs to another one now)
  stale,        // whole, but nothing was published for kStatsStaleAfter
  not_regular,  // a link, a pipe, a folder, a device
  too_large,    // more than KDTREE_STATS_MAX_BYTES
  unreadable,   // the system refused; `detail` says how
};

inline constexpr std::chrono::seconds kStatsStaleAfter{10};  // stats_abi.h
inline constexpr std::size_t kStatsMaxFiles = 256;           // looked at in one folder
inline constexpr std::size_t kStatsMaxDirBytes =
    64u << 20;  // of whole files in one folder; 8 ranks need 2 MiB

std::string_view outcome_name(StatsOutcome outcome);
std::span<const StatsOutcome> all_outcomes();

// Who wrote a whole file, alive or not: enough to say "rank 3 (pid 4711) is gone", no value to be
// shown.
struct StatsWriter {
  std::int64_t pid = 0;
  std::optional<int> tp_rank;
};

struct StatsFile {
  std::filesystem::path path;
  StatsOutcome outcome = StatsOutcome::unreadable;
  std::string detail;                 // one line for an operator; empty when ok
  std::optional<RankStats> stats;     // set exactly when outcome is ok
  std::optional<StatsWriter> writer;  // set when outcome is ok, dead or stale
};

struct StatsDir {
  std::vector<StatsFile> files;  // "*.stats" in the folder, sorted by name, at most kStatsMaxFiles
  std::size_t left_out = 0;      // files beyond that
};

inline constexpr int kEveryRank = INT_MAX;

// Decodes one whole image, without asking whether its writer lives. Outcome ok, torn (odd
// sequence), damaged, truncated, foreign, newer or too_large. No I/O. The routing tables (0.2 MB at
// 60 x 384 experts) of a TP rank beyond `last_rank_with_tables` are checked and left empty.
StatsFile decode_stats(std::span<const std::byte> image, int last_rank_with_tables = kEveryRank);

// Reads one file. /proc is looked up under `root`; `path` is used as it is. Takes at most some 10
// ms on a local disk.
StatsFile read_stats_file(const Root& root, const std::filesystem::path& path);

enum class RoutingTables {
  all,
  of_lowest_rank,  // at least those of the lowest living rank that counts routing; others may be
                   // empty
};

// Reads every "*.stats" of the folder `dir` (used as it is). A folder that doesn't exist holds no
// files. Errors: the folder can't be listed, or is not a folder.
Result<StatsDir> read_stats_dir(const Root& root, const std::filesystem::path& dir,
                                RoutingTables tables = RoutingTables::all);

}  // namespace kdtree
