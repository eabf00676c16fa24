// SPDX-License-Identifier: Apache-2.0
#include "agent/stats/rank_stats.h"

#include <numeric>

namespace kdtree {
namespace {

constexpr std::array<std::string_view, 20> kHandBackNames{
    "not_verify",
    "no_metadata",
    "not_mla",
    "attention_type",
    "sinks",
    "score_mod",
    "logit_cap",
    "sliding_window",
    "temperature",
    "deterministic",
    "context_parallel",
    "shared_kv",
    "kv_layout",
    "kv_dtype",
    "dtype",
    "shape",
    "mask",
    "workspace",
    "error",
    "signature",
};
static_assert(kHandBackNames.size() == KDTREE_BACK_SIGNATURE + 1);
static_assert(KDTREE_BACK_CONTEXT_PARALLEL == 10 && KDTREE_BACK_MASK == 16);

}  // namespace

std::string_view patch_state_name(PatchState state) {
  switch (state) {
    case PatchState::passive:
      return "passive";
    case PatchState::active:
      return "active";
    case PatchState::refused:
      return "refused";
  }
  return "?";
}

std::string hand_back_name(std::size_t index) {
  if (index < kHandBackNames.size()) return std::string(kHandBackNames[index]);
  return "reason_" + std::to_string(index);
}

std::uint64_t RankStats::handed_back_total() const {
  return std::accumulate(handed_back.begin(), handed_back.end(), std::uint64_t{0});
}

}  // namespace kdtree
