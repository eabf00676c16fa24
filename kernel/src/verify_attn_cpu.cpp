// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <memory>
#include <new>
#include <vector>

#include "checks.h"
#include "host_view.h"
#include "parallel.h"

// The compiler makes one copy of each hot loop for each of these and the loader picks.
#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__) && \
    !defined(__SANITIZE_ADDRESS__)
#define KDTREE_CLONES __attribute__((target_clones("avx512f", "arch=haswell", "default"), noinline))
#else
#define KDTREE_CLONES
#endif

namespace kdtree {
namespace {

constexpr int64_t kTileKeys = 32;
constexpr int64_t kTaskRows = 16;
constexpr int kLanes = 16;

using Scores = std::array<float, kTileKeys>;

struct Factors {
  float key = 1, value = 1;
};

struct Row {
  int64_t token = 0, head = 0;
  float highest = -std::numeric_limits<float>::infinity();
  float sum = 0;
  std::array<float, KDTREE_QK_DIM> q;
  std::array<float, KDTREE_QK_DIM> q_for_prefix;
  std::array<float, KDTREE_V_DIM> acc{};
};

struct Scratch {
  std::array<std::array<float, KDTREE_QK_DIM>, kTileKeys> keys;
  std::array<Factors, kTileKeys> factors;
  std::array<Row, kTaskRows> rows;
};

KDTREE_CLONES float dot(const float* a, const float* b) {
  float lanes[kLanes] = {};
  for (int d = 0; d < KDTREE_QK_DIM; d += kLanes)
    for (int i = 0; i < kLanes; ++i) lanes[i] += a[d + i] * b[d + i];
  float sum = 0;
  for (const float lane : lanes) sum += lane;
  return sum;
}

KDTREE_CLONES void scale(float* acc, float factor) {
  for (int d = 0; d < KDTREE_V_DIM; ++d) acc[d] *= factor;
}

KDTREE_CLONES void add_scaled(float* acc, const float* value, float weight) {
  for (int d = 0; d < KDTREE_V_DIM; ++d) acc[d] += weight * value[d];
}

template <typename T>
void widen(const T* from, float* to) {
  for (int d = 0; d < KDTREE_QK_DIM; ++d) to[d] = from[d].value();
}

// One step of the online softmax: `count` keys of which scores are -inf where the row doesn't see
// them.
void absorb(Row& row, const Scratch& scratch, const Scores& scores,
            const std::array<bool, kTileKeys>& seen, int64_t count) {
  float highest = row.highest;
  bool any = false;
  for (int64_t i = 0; i < count; ++i) {
    if (!seen[static_cast<size_t>(i)]) continue;
    any = true;
    highest = std::max(highest, scores[static_cast<size_t>(i)]);
  }
  if (!any) return;
  if (highest > row.highest) {
    const float factor = std::exp(row.highest - highest);
    row.sum *= factor;
    scale(row.acc.data(), factor);
    row.highest = highest;
  }
  for (int64_t i = 0; i < count; ++i) {
    const auto at = static_cast<size_t>(i);
    if (!seen[at]) continue;
    const float weight = std::exp(scores[at] - row.highest);
    row.sum += weight;
    add_scaled(row.acc.data(), scratch.keys[at].data(), weight * scratch.factors[at].value);
  }
}

template <typename T>
void store(const kdtree_verify_attn_params& p, void* base, int64_t token, const Row& row) {
  T* out = static_cast<T*>(base) + token * p.out_token_stride + row.head * p.out_head_stride;
  for (size_t d = 0; d < KDTREE_V_DIM; ++d) out[d] = T::from(row.acc[d] / row.sum);
}

// Rows [first, first + count) of a request, row = token * heads + head.
template <typename T, typename Kv>
void attend(const kdtree_verify_attn_params& p, void* out, const Request<T, Kv>& request,
            int64_t first, int64_t count) {
  const auto scratch = std::make_unique<Scratch>();
  for (int64_t r = 0; r < count; ++r) {
    Row& row = scratch->rows[static_cast<size_t>(r)];
    row.token = (first + r) / p.heads;
    row.head = (first + r) % p.heads;
    widen(request.query(row.token, row.head), row.q.data());
    std::transform(row.q.begin(), row.q.end(), row.q_for_prefix.begin(), request.seen_by_prefix);
  }
  for (int64_t t = 0; t < request.keys(); t += kTileKeys) {
    const int64_t keys = std::min(kTileKeys, request.keys() - t);
    for (int64_t i = 0; i < keys; ++i) {
      const auto at = static_cast<size_t>(i);
      request.key(t + i, [&](const auto* key) { widen(key, scratch->keys[at].data()); });
      scratch->factors[at] = {static_cast<float>(double{p.sm_scale} * request.key_scale(t + i)),
                              static_cast<float>(request.value_scale(t + i))};
    }
    for (int64_t r = 0; r < count; ++r) {
      Row& row = scratch->rows[static_cast<size_t>(r)];
      Scores scores{};
      std::array<bool, kTileKeys> seen{};
      for (int64_t i = 0; i < keys; ++i) {
        const auto at = static_cast<size_t>(i);
        seen[at] = request.sees(row.token, t + i);
        const auto& q = t + i < request.prefix() ? row.q_for_prefix : row.q;
        if (seen[at])
          scores[at] = dot(q.data(), scratch->keys[at].data()) * scratch->factors[at].key;
      }
      absorb(row, *scratch, scores, seen, keys);
    }
  }
  for (int64_t r = 0; r < count; ++r) {
    const Row& row = scratch->rows[static_cast<size_t>(r)];
    store<T>(p, out, request.first_token() + row.token, row);
  }
}

template <typename T, typename Kv = T>
void attend_all(const kdtree_verify_attn_params& p, void* out) {
  const int64_t tasks_each = (int64_t{p.draft_tokens} * p.heads + kTaskRows - 1) / kTaskRows;
  parallel_for(p.batch * tasks_each, p.threads, [&](int64_t task) {
    const Request<T, Kv> request(p, task / tasks_each);
    const int64_t first = task % tasks_each * kTaskRows;
    const int64_t count = std::min(kTaskRows, request.tokens() * p.heads - first);
    if (count > 0) attend(p, out, request, first, count);
  });
}

}  // namespace
}  // namespace kdtree

int kdtree_verify_attn_cpu(const kdtree_verify_attn_params* params) {
  using namespace kdtree;
  if (params == nullptr) return KDTREE_BAD_POINTER;
  if (const int status = check(*params, Device::cpu); status != KDTREE_OK) return status;
  const int32_t enable = params->enable == nullptr ? KDTREE_ENABLE_OUT : *params->enable;
  if (enable == KDTREE_ENABLE_NOTHING) return KDTREE_OK;
  void* out = enable == KDTREE_ENABLE_SCRATCH && params->out_scratch != nullptr
                  ? params->out_scratch
                  : params->out;
  if (out == nullptr) return KDTREE_BAD_POINTER;
  const bool fp8 = params->kv_dtype == KDTREE_KV_E4M3;
  switch (params->dtype) {
    case KDTREE_BF16:
      fp8 ? attend_all<Bf16, E4m3>(*params, out) : attend_all<Bf16>(*params, out);
      break;
    case KDTREE_FP16:
      fp8 ? attend_all<Fp16, E4m3>(*params, out) : attend_all<Fp16>(*params, out);
      break;
    default:
      attend_all<Fp32>(*params, out);
      break;
  }
  return KDTREE_OK;
}
