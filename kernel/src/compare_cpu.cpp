// SPDX-License-Identifier: Apache-2.0
#include <atomic>
#include <limits>

#include "checks.h"
#include "compare_rule.h"
#include "host_view.h"

namespace kdtree {
namespace {

template <typename T>
void compare_row(const T* ours, const T* engines, int32_t dtype, int32_t head, TokenDelta& delta) {
  float magnitude = 0, largest = 0;
  double sum = 0;
  for (int d = 0; d < KDTREE_V_DIM; ++d) {
    const float theirs = engines[d].value();
    if (!std::isfinite(theirs)) continue;
    const float mine = ours[d].value();
    const float difference =
        std::isfinite(mine) ? std::fabs(mine - theirs) : std::numeric_limits<float>::infinity();
    magnitude = std::max(magnitude, std::fabs(theirs));
    largest = std::max(largest, difference);
    sum += double{difference};
    ++delta.counted;
  }
  delta.max_abs = std::max(delta.max_abs, largest);
  const float unit = ulp_at(magnitude, dtype);
  const float ulp = largest / unit;
  delta.sum_ulp += sum / double{unit};
  if (ulp > delta.max_ulp) delta.worst_head = head;
  delta.max_ulp = std::max(delta.max_ulp, ulp);
}

template <typename T>
void compare_all(const kdtree_compare_params& p) {
  TokenDelta total{};
  double mean = 0;
  int32_t worst_token = 0;
  int64_t longest = 0;
  const int32_t each = p.tokens / p.batch;
  for (int32_t b = 0; b < p.batch; ++b) {
    double sum_ulp = 0;
    int64_t counted = 0;
    for (int32_t token = b * each; token < (b + 1) * each; ++token) {
      TokenDelta delta{};
      for (int32_t head = 0; head < p.heads; ++head)
        compare_row(static_cast<const T*>(p.ours) + token * p.ours_token_stride +
                        int64_t{head} * KDTREE_V_DIM,
                    static_cast<const T*>(p.engines) + token * p.engines_token_stride +
                        int64_t{head} * KDTREE_V_DIM,
                    p.dtype, head, delta);
      if (delta.max_ulp > total.max_ulp) {
        worst_token = token;
        total.worst_head = delta.worst_head;
      }
      total.max_ulp = std::max(total.max_ulp, delta.max_ulp);
      total.max_abs = std::max(total.max_abs, delta.max_abs);
      sum_ulp += delta.sum_ulp;
      counted += delta.counted;
    }
    total.counted += counted;
    mean = std::max(mean, mean_of(sum_ulp, counted));
    longest = std::max(longest, int64_t{p.kv_indptr[b + 1]} - int64_t{p.kv_indptr[b]});
  }

  const std::atomic_ref sequence(p.accum->sequence);
  sequence.fetch_add(1, std::memory_order_seq_cst);
  std::atomic_thread_fence(std::memory_order_seq_cst);
  accumulate(p.accum, p, {total, mean, worst_token, longest});
  std::atomic_thread_fence(std::memory_order_seq_cst);
  sequence.fetch_add(1, std::memory_order_seq_cst);
}

}  // namespace
}  // namespace kdtree

int kdtree_compare_cpu(const kdtree_compare_params* params) {
  using namespace kdtree;
  if (params == nullptr) return KDTREE_BAD_POINTER;
  if (const int status = check(*params, Device::cpu); status != KDTREE_OK) return status;
  if (params->enable != nullptr && *params->enable == 0) return KDTREE_OK;
  switch (params->dtype) {
    case KDTREE_BF16:
      compare_all<Bf16>(*params);
      break;
    case KDTREE_FP16:
      compare_all<Fp16>(*params);
      break;
    default:
      compare_all<Fp32>(*params);
      break;
  }
  return KDTREE_OK;
}
