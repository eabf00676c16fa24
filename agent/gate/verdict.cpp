// SPDX-License-Identifier: Apache-2.0
#include "agent/gate/verdict.h"

#include <algorithm>
#include <array>
#include <cstdio>

namespace kdtree {
namespace {

std::string number(double value) {
  std::array<char, 32> text{};
  std::snprintf(text.data(), text.size(), "%.3g", value);
  return text.data();
}

void keep_larger(std::optional<double>& kept, const std::optional<double>& value) {
  if (value && (!kept || *value > *kept)) kept = value;
}

// ", worst in layer 3, request 1 of 4, head 5, prefix 4100", as far as it is known.
std::string worst_of(const RankStats& stats) {
  std::string text;
  if (stats.worst_layer) text += ", worst in layer " + std::to_string(*stats.worst_layer);
  if (stats.worst_request) text += ", request " + std::to_string(*stats.worst_request);
  if (stats.worst_request && stats.worst_batch) text += " of " + std::to_string(*stats.worst_batch);
  if (stats.worst_head) text += ", head " + std::to_string(*stats.worst_head);
  if (stats.worst_head) text += ", prefix " + std::to_string(stats.worst_prefix);
  return text;
}

// ": largest difference 8 ULP (limit 4), mean of a request 0.2 ULP (limit 0.5)", as far as it is
// known.
std::string differences(const RankStats& stats, const ValidateConfig& limits) {
  std::string text;
  if (stats.max_ulp)
    text += ": largest difference " + number(*stats.max_ulp) + " ULP (limit " +
            number(limits.max_ulp) + ")";
  if (stats.max_mean_ulp)
    text += std::string(text.empty() ? ": " : ", ") + "mean of a request up to " +
            number(*stats.max_mean_ulp) + " ULP (limit " + number(limits.mean_ulp) + ")";
  return text;
}

// Batch sizes that served calls and of which none was compared, "" = there are none.
std::string never_compared(const RankStats& stats) {
  std::string sizes;
  for (const auto& batch : stats.batches) {
    if (batch.calls == 0 || batch.compares > 0) continue;
    sizes += (sizes.empty() ? "" : ", ") +
             (batch.batch == 0 ? std::string("larger") : std::to_string(batch.batch));
  }
  return sizes;
}

// The reason why the difference is too large, or "".
std::string over_limit(const RankStats& stats, const ValidateConfig& limits) {
  if (stats.mismatches > 0)
    return std::to_string(stats.mismatches) + " of " + std::to_string(stats.compares) +
           " compares over tolerance" + differences(stats, limits) + worst_of(stats);
  if (stats.max_ulp && !(*stats.max_ulp <= limits.max_ulp))
    return "largest difference " + number(*stats.max_ulp) + " ULP, limit " +
           number(limits.max_ulp) + worst_of(stats);
  if (stats.max_mean_ulp && !(*stats.max_mean_ulp <= limits.mean_ulp))
    return "mean difference of a request " + number(*stats.max_mean_ulp) + " ULP, limit " +
           number(limits.mean_ulp);
  return {};
}

RankVerdict judge_rank(const RankView& view, const std::string& release_id,
                       const ValidateConfig& limits) {
  RankVerdict verdict;
  verdict.rank = view.rank;
  if (!view.stats) {
    verdict.reason = view.missing;
    return verdict;
  }
  const RankStats& stats = *view.stats;
  if (stats.release_id != release_id) {
    verdict.reason = "runs release " + (stats.release_id.empty() ? "unknown" : stats.release_id);
    return verdict;
  }
  verdict.compares = stats.compares;
  verdict.mismatches = stats.mismatches;
  verdict.max_abs = stats.max_abs;
  verdict.max_ulp = stats.max_ulp;
  verdict.max_mean_ulp = stats.max_mean_ulp;
  verdict.worst_layer = stats.worst_layer;
  verdict.worst_request = stats.worst_request;
  verdict.worst_batch = stats.worst_batch;
  verdict.worst_head = stats.worst_head;
  verdict.longest_prefix = stats.longest_prefix;
  if (stats.compares > 0)
    verdict.mean_ulp = stats.sum_mean_ulp / static_cast<double>(stats.compares);
  for (const auto& batch : stats.batches) verdict.batches[batch.batch] += batch.compares;

  if (auto why = over_limit(stats, limits); !why.empty()) {
    verdict.kind = VerdictKind::mismatch;
    verdict.reason = why;
  } else if (stats.patch_state != PatchState::active) {
    verdict.reason = std::string(patch_state_name(stats.patch_state)) +
                     (stats.reason.empty() ? "" : ": " + stats.reason);
  } else if (stats.compares < limits.min_compares) {
    verdict.reason = std::to_string(stats.compares) + " compares, " +
                     std::to_string(limits.min_compares) + " needed";
  } else if (const auto errors = stats.handed_back[KDTREE_BACK_ERROR]; errors > 0) {
    verdict.reason = std::to_string(errors) + " calls handed back because kdtree's kernel failed" +
                     (stats.reason.empty() ? "" : ": " + stats.reason);
  } else if (const auto sizes = never_compared(stats); !sizes.empty()) {
    verdict.reason = "batch sizes that served and were never compared: " + sizes;
  } else if (!stats.max_ulp || !stats.max_mean_ulp || !stats.max_abs) {
    verdict.reason = "compared, but reports no difference value";
  } else {
    verdict.kind = VerdictKind::clean;
  }
  return verdict;
}

// What all ranks agree on, or "".
template <typename Field>
std::string common(const RankSet& ranks, Field field) {
  std::string value;
  bool first = true;
  for (const auto& view : ranks.ranks) {
    if (!view.stats) continue;
    const std::string& theirs = (*view.stats).*field;
    if (!first && theirs != value) return {};
    value = theirs;
    first = false;
  }
  return value;
}

void add_to_total(const RankVerdict& rank, Verdict& total) {
  total.compares += rank.compares;
  total.mismatches += rank.mismatches;
  keep_larger(total.max_abs, rank.max_abs);
  keep_larger(total.max_ulp, rank.max_ulp);
  keep_larger(total.mean_ulp, rank.mean_ulp);
  keep_larger(total.max_mean_ulp, rank.max_mean_ulp);
  total.longest_prefix = std::max(total.longest_prefix, rank.longest_prefix);
  for (const auto& [batch, compares] : rank.batches) total.batches[batch] += compares;
  if (!rank.reason.empty())
    total.reasons.push_back("rank " + std::to_string(rank.rank) + ": " + rank.reason);
}

}  // namespace

std::string_view verdict_name(VerdictKind kind) {
  switch (kind) {
    case VerdictKind::clean:
      return "clean";
    case VerdictKind::insufficient:
      return "insufficient";
    case VerdictKind::mismatch:
      return "mismatch";
  }
  return "?";
}

Verdict judge_ranks(const RankSet& ranks, const std::string& release_id,
                    const ValidateConfig& limits) {
  Verdict total;
  total.release_id = release_id;
  total.engine_version = common(ranks, &RankStats::engine_version);
  total.engine_fingerprint = common(ranks, &RankStats::engine_fingerprint);
  bool clean = !ranks.ranks.empty() && ranks.conflicts.empty();
  bool mismatch = false;
  for (const auto& view : ranks.ranks) {
    auto verdict = judge_rank(view, release_id, limits);
    clean = clean && verdict.kind == VerdictKind::clean;
    mismatch = mismatch || verdict.kind == VerdictKind::mismatch;
    add_to_total(verdict, total);
    total.ranks.push_back(std::move(verdict));
  }
  for (const auto& conflict : ranks.conflicts) total.reasons.push_back(conflict);
  if (clean && total.engine_fingerprint.empty()) {
    clean = false;
    total.reasons.emplace_back("the ranks don't run one and the same known engine");
  }
  auto fewest = std::ranges::min_element(total.ranks, {}, &RankVerdict::compares);
  total.fewest_compares = fewest == total.ranks.end() ? 0 : fewest->compares;
  total.kind = mismatch ? VerdictKind::mismatch
               : clean  ? VerdictKind::clean
                        : VerdictKind::insufficient;
  return total;
}

}  // namespace kdtree
