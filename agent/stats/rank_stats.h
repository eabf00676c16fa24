// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "agent/stats/stats_abi.h"
#include "agent/util/mode.h"

namespace kdtree {

enum class PatchState { passive = 0, active = 1, refused = 2 };
enum class SortState { unknown = -1, off = 0, confirmed = 1, not_possible = 2 };

std::string_view patch_state_name(PatchState state);

// "not_mla" for KDTREE_BACK_NOT_MLA; "reason_20" and up for an index that this build has no name
// for.
std::string hand_back_name(std::size_t index);

struct BatchCompares {
  std::uint32_t batch = 0;  // requests in the call; 0 = all sizes that have no entry of their own
  std::uint64_t compares = 0;
  std::uint64_t calls = 0;  // served at that size, whichever kernel answered
};

// Expert routing in decode and verify steps of the target model as one process saw it; prefill is
// not in it. Counters since its start; tables are row-major by layer.
struct MoeStats {
  std::uint32_t layers = 0;
  std::uint32_t experts = 0;  // logical ones a layer, shared experts not counted
  std::uint32_t top_k = 0;
  std::uint32_t first_layer = 0;  // layer id of row 0
  std::uint64_t steps = 0;
  std::uint64_t tokens = 0;  // routed tokens, each counted once and not per layer
  std::vector<std::uint64_t>
      expert_tokens;  // [layers * experts] assignments; empty = not published
  std::vector<std::uint64_t> unique_experts;  // [layers] sum over steps; empty = not published
  std::vector<std::uint64_t> layer_steps;     // [layers]; empty = not published
  std::uint32_t step_ranks = 0;  // expert ranks below: the engine's, or at EP 1 as many as TP has
  std::vector<std::uint64_t>
      idle_ranks;  // [layers * step_ranks] steps without a token; empty = not published
  std::vector<std::uint64_t>
      peaks;  // [layers] assignments of a step's fullest rank, summed; empty = not published
  std::vector<std::uint64_t> stragglers;  // [layers * step_ranks] KDTREE_STATS_SHARE a step, shared
                                          // by its fullest ranks; empty = not published
  std::vector<std::uint64_t> pass_rows;   // pairs: tokens of a step, steps; empty = not published
};

// What one living engine process says about the patch inside it: kdtree_stats_header, decoded and
// checked. Empty strings and nullopt mean unknown. Counters only grow while the process lives.
struct RankStats {
  // who
  std::int64_t pid = 0;
  std::uint64_t pid_start_ticks = 0;
  std::string boot_id;
  std::uint64_t publications = 0;
  std::chrono::nanoseconds updated{};  // CLOCK_BOOTTIME of the publication
  std::optional<int> tp_rank;  // nullopt: launcher, detokenizer, compile worker, or not known yet
  std::optional<int> tp_size;
  std::optional<int> moe_ep_rank;
  std::optional<int> moe_ep_size;
  std::string device_uuid;  // as NVML prints it; empty on the CPU
  std::string device_name;  // "NVIDIA H200"; "cpu"

  // what runs
  std::string release_id;
  std::string engine_version;
  std::string engine_fingerprint;
  std::string torch_version;
  std::string library_sha256;
  std::string environment_sha256;

  // state
  PatchState patch_state = PatchState::passive;
  Mode mode = Mode::off;  // in force; means something only while patch_state is active
  std::uint64_t control_generation =
      0;               // of the last control file obeyed; 0 = none, the environment's mode holds
  std::string reason;  // why refused or passive; last kernel error
  SortState sort_state = SortState::unknown;
  std::optional<bool> graphs;      // verify runs in captured CUDA graphs
  std::optional<Mode> start_mode;  // what KDTREE_VERIFY asks for; holds while no control file does

  // verify calls, one a layer and step
  std::uint64_t calls_kernel = 0;
  std::uint64_t calls_engine = 0;  // eligible, answered by the engine's own kernel
  std::array<std::uint64_t, KDTREE_STATS_MAX_REASONS>
      handed_back{};  // index: enum kdtree_hand_back
  std::uint64_t compares = 0;
  std::uint64_t mismatches = 0;        // compares over tolerance
  std::optional<double> max_abs;       // nullopt: none compared
  std::optional<double> max_ulp;       // nullopt: none compared
  double sum_mean_ulp = 0;             // over compares; divide by `compares` for the mean
  std::optional<double> max_mean_ulp;  // largest mean of a compare; nullopt: none compared
  std::uint64_t longest_prefix = 0;    // tokens, of the compared calls
  std::optional<int> worst_layer;      // where max_ulp was seen, nullopt: nothing differed
  std::optional<int> worst_request;    // its row in the batch
  std::optional<int> worst_batch;      // requests in that call
  std::optional<int> worst_head;       // of this rank
  std::uint64_t worst_prefix = 0;      // tokens of that request
  std::vector<BatchCompares> batches;  // by batch size
  std::uint64_t kv_pairs = 0;
  std::uint64_t kv_contiguous_pairs = 0;

  std::optional<MoeStats> moe;  // nullopt: not observed

  bool is_rank() const { return tp_rank.has_value(); }
  std::uint64_t handed_back_total() const;
};

}  // namespace kdtree
