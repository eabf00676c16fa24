// SPDX-License-Identifier: Apache-2.0
#include <cmath>
#include <limits>
#include <vector>

#include "checks.h"
#include "host_view.h"

namespace kdtree {
namespace {

template <typename T, typename Kv>
void reference_row(const kdtree_verify_attn_params& p, const Request<T, Kv>& request, int64_t token,
                   int64_t head, double* out) {
  constexpr double kNone = -std::numeric_limits<double>::infinity();
  const T* q = request.query(token, head);
  std::vector<double> scores(static_cast<size_t>(request.keys()), kNone);
  double highest = kNone;
  for (int64_t t = 0; t < request.keys(); ++t) {
    if (!request.sees(token, t)) continue;
    double dot = 0;
    request.key(t, [&](const auto* key) {
      for (int d = 0; d < KDTREE_QK_DIM; ++d) {
        const float of_q =
            t < request.prefix() ? request.seen_by_prefix(q[d].value()) : q[d].value();
        dot += double{of_q} * double{key[d].value()};
      }
    });
    scores[static_cast<size_t>(t)] = dot * double{p.sm_scale} * request.key_scale(t);
    highest = std::max(highest, scores[static_cast<size_t>(t)]);
  }
  double sum = 0;
  std::fill_n(out, KDTREE_V_DIM, 0.0);
  for (int64_t t = 0; t < request.keys(); ++t) {
    if (!request.sees(token, t)) continue;
    const double weight = std::exp(scores[static_cast<size_t>(t)] - highest);
    const double scaled = weight * request.value_scale(t);
    sum += weight;
    request.key(t, [&](const auto* value) {
      for (int d = 0; d < KDTREE_V_DIM; ++d) out[d] += scaled * double{value[d].value()};
    });
  }
  for (int d = 0; d < KDTREE_V_DIM; ++d) out[d] /= sum;
}

template <typename T, typename Kv = T>
void reference(const kdtree_verify_attn_params& p, double* out) {
  for (int64_t b = 0; b < p.batch; ++b) {
    const Request<T, Kv> request(p, b);
    for (int64_t token = 0; token < request.tokens(); ++token)
      for (int64_t head = 0; head < p.heads; ++head)
        reference_row(p, request, token, head,
                      out + ((request.first_token() + token) * p.heads + head) * KDTREE_V_DIM);
  }
}

}  // namespace
}  // namespace kdtree

int kdtree_verify_attn_fp64(const kdtree_verify_attn_params* params, double* out64) {
  using namespace kdtree;
  if (params == nullptr || out64 == nullptr) return KDTREE_BAD_POINTER;
  if (const int status = check(*params, Device::cpu); status != KDTREE_OK) return status;
  const bool fp8 = params->kv_dtype == KDTREE_KV_E4M3;
  switch (params->dtype) {
    case KDTREE_BF16:
      fp8 ? reference<Bf16, E4m3>(*params, out64) : reference<Bf16>(*params, out64);
      break;
    case KDTREE_FP16:
      fp8 ? reference<Fp16, E4m3>(*params, out64) : reference<Fp16>(*params, out64);
      break;
    default:
      reference<Fp32>(*params, out64);
      break;
  }
  return KDTREE_OK;
}
