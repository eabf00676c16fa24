// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "agent/cli/bench_steps.h"

// What `kdtreectl bench --engine` found: as JSON, as a table, and beside an earlier one.
namespace kdtree {

inline constexpr int kBenchFormat = 1;

struct BenchReport {
  std::string engine;             // URL
  std::string date;               // UTC
  std::string mode;               // of all ranks; "unpatched" = no rank speaks; "mixed"
  std::string release;            // "" = unknown
  std::string engine_version;     // "" = unknown
  std::vector<std::string> gpus;  // UUIDs in the order of ranks; empty = unknown
  std::vector<BenchPoint> points;
};

nlohmann::ordered_json to_json(const BenchReport& report);

// Errors: refused: not a report of this format.
Result<BenchReport> parse_report(std::string_view text, const std::string& where);

// Header and rows. `against`: a report in another mode, whose times come first, with the quotient.
// Errors: refused if it is of other GPUs: figures of different machines don't mix.
struct BenchTable {
  std::vector<std::string> header;
  std::vector<std::vector<std::string>> rows;
};
Result<BenchTable> make_table(const BenchReport& report, const BenchReport* against);

}  // namespace kdtree
