// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "agent/config/config.h"
#include "agent/gate/ranks.h"

namespace kdtree {

enum class VerdictKind {
  clean,         // every rank compared enough, none over tolerance
  insufficient,  // nothing bad seen, and not enough seen
  mismatch,      // at least one compare over tolerance
};

std::string_view verdict_name(VerdictKind kind);

struct RankVerdict {
  int rank = 0;
  VerdictKind kind = VerdictKind::insufficient;
  std::string reason;  // why it isn't clean; "" = clean
  std::uint64_t compares = 0;
  std::uint64_t mismatches = 0;
  std::optional<double> max_abs;                   // output units
  std::optional<double> max_ulp;                   // of the output dtype at the output's magnitude
  std::optional<double> mean_ulp;                  // mean over compares of a compare's mean
  std::optional<double> max_mean_ulp;              // largest mean of a compare
  std::optional<int> worst_layer;                  // where max_ulp was seen
  std::optional<int> worst_request;                // its row in the batch
  std::optional<int> worst_batch;                  // requests in that call
  std::optional<int> worst_head;                   // of this rank
  std::uint64_t longest_prefix = 0;                // tokens
  std::map<std::uint32_t, std::uint64_t> batches;  // batch size -> compares
};

// What `validate` has compared since the engine's processes started, over all ranks. A rank that is
// missing, refused or of another release makes it insufficient, never clean; so do a batch size
// that served calls and was never compared, and calls that were handed back because our kernel
// failed. Nothing compared is never 0 difference.
struct Verdict {
  VerdictKind kind = VerdictKind::insufficient;
  std::vector<std::string> reasons;  // why it isn't clean, one line each; empty = clean
  std::vector<RankVerdict> ranks;
  std::string release_id;
  std::string engine_version;         // "" = the ranks differ or none speaks
  std::string engine_fingerprint;     // "" = the ranks differ or none speaks
  std::uint64_t compares = 0;         // of all ranks
  std::uint64_t fewest_compares = 0;  // of the rank with the fewest
  std::uint64_t mismatches = 0;
  std::optional<double> max_abs;
  std::optional<double> max_ulp;
  std::optional<double> mean_ulp;
  std::optional<double> max_mean_ulp;
  std::uint64_t longest_prefix = 0;
  std::map<std::uint32_t, std::uint64_t> batches;
};

// Pure.
Verdict judge_ranks(const RankSet& ranks, const std::string& release_id,
                    const ValidateConfig& limits);

}  // namespace kdtree
