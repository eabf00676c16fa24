// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <atomic>

#include "checks.h"
#include "slots_rule.h"

namespace kdtree {
namespace {

template <typename T>
void look(const kdtree_slots_params& p) {
  const T* slots = static_cast<const T*>(p.kv_indices);
  uint64_t pairs = 0;
  uint64_t contiguous = 0;
  for (int32_t b = 0; b < p.batch; ++b) {
    const int64_t start = p.kv_indptr[b];
    const int64_t seen = slots_seen(p.kv_indptr[b + 1] - start, p);
    for (int64_t t = 0; t + 1 < seen; ++t) {
      ++pairs;
      contiguous += slots[start + t + 1] - slots[start + t] == 1 ? 1 : 0;
    }
  }
  const std::atomic_ref sequence(p.counts->sequence);
  sequence.fetch_add(1, std::memory_order_seq_cst);
  std::atomic_thread_fence(std::memory_order_seq_cst);
  p.counts->pairs += pairs;
  p.counts->contiguous += contiguous;
  ++p.counts->looks;
  std::atomic_thread_fence(std::memory_order_seq_cst);
  sequence.fetch_add(1, std::memory_order_seq_cst);
}

}  // namespace
}  // namespace kdtree

int kdtree_slots_cpu(const kdtree_slots_params* params) {
  using namespace kdtree;
  if (params == nullptr) return KDTREE_BAD_POINTER;
  if (const int status = check(*params); status != KDTREE_OK) return status;
  if (params->enable != nullptr && *params->enable == 0) return KDTREE_OK;
  if (params->kv_indices_bits == 64)
    look<int64_t>(*params);
  else
    look<int32_t>(*params);
  return KDTREE_OK;
}
