// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <kdtree/compare.h>
#include <kdtree/verify_attn.h>

#include <cmath>

#include "gate_rule.h"

namespace kdtree {

// What compare.h finds in one token's rows, then in a call.
struct TokenDelta {
  double sum_ulp;   // of ulp
  int64_t counted;  // elements with a finite engine value
  float max_abs, max_ulp;
  int32_t worst_head;  // where max_ulp is
};

// What a call's totals say besides.
struct CallDelta {
  TokenDelta total;
  double mean_ulp;         // largest of its requests' means
  int32_t worst_token;     // where total.max_ulp is
  int64_t longest_prefix;  // tokens
};

// Above it a mean is Inf and not added to sum_mean_ulp, which would never be finite again.
constexpr double kLargest = 1e300;

// Size of one unit in the last place of dtype at `magnitude`.
KDTREE_HOST_DEVICE inline float ulp_at(float magnitude, int32_t dtype) {
  const int digits = dtype == KDTREE_BF16 ? 7 : dtype == KDTREE_FP16 ? 10 : 23;
  const int lowest = dtype == KDTREE_FP16 ? -14 : -126;
  const int exponent = magnitude > 0 ? ilogbf(magnitude) : lowest;
  return ldexpf(1.0f, (exponent < lowest ? lowest : exponent) - digits);
}

// Mean ulp of a request.
KDTREE_HOST_DEVICE inline double mean_of(double sum_ulp, int64_t counted) {
  return counted > 0 ? sum_ulp / static_cast<double>(counted) : 0.0;
}

// Adds one compare to the accumulator; the caller is the only writer.
KDTREE_HOST_DEVICE inline void accumulate(volatile kdtree_compare_accum* accum,
                                          const kdtree_compare_params& p, const CallDelta& call) {
  const TokenDelta& total = call.total;
  const int64_t elements = int64_t{p.tokens} * p.heads * KDTREE_V_DIM;
  const bool clean = total.max_ulp <= p.max_ulp && call.mean_ulp <= p.mean_ulp;
  accum->compares = accum->compares + 1;
  accum->mismatches = accum->mismatches + (clean ? 0 : 1);
  accum->skipped = accum->skipped + static_cast<uint64_t>(elements - total.counted);
  if (total.max_abs > accum->max_abs) accum->max_abs = total.max_abs;
  if (total.max_ulp > accum->max_ulp) {
    accum->max_ulp = total.max_ulp;
    accum->worst_layer = p.layer;
    accum->worst_request = call.worst_token / (p.tokens / p.batch);
    accum->worst_batch = p.batch;
    accum->worst_head = total.worst_head;
    accum->worst_prefix = p.kv_indptr[accum->worst_request + 1] - p.kv_indptr[accum->worst_request];
  }
  if (call.mean_ulp > accum->max_mean_ulp) accum->max_mean_ulp = call.mean_ulp;
  if (call.mean_ulp <= kLargest) accum->sum_mean_ulp = accum->sum_mean_ulp + call.mean_ulp;
  if (call.longest_prefix > accum->longest_prefix) accum->longest_prefix = call.longest_prefix;
  const int32_t slot = p.batch <= KDTREE_COMPARE_MAX_BATCH ? p.batch : 0;
  accum->compares_by_batch[slot] = accum->compares_by_batch[slot] + 1;
}

}  // namespace kdtree
