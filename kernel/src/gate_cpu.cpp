// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <atomic>

#include "checks.h"
#include "gate_rule.h"

namespace kdtree {
namespace {

template <typename T>
void gate_copy(const void* from, void* to, int64_t count, bool engine) {
  for (int64_t i = 0; i < count; ++i)
    static_cast<T*>(to)[i] = engine ? static_cast<const T*>(from)[i] : T{0};
}

}  // namespace
}  // namespace kdtree

int kdtree_gate_cpu(const kdtree_gate_params* params) {
  using namespace kdtree;
  if (params == nullptr) return KDTREE_BAD_POINTER;
  if (const int status = check(*params); status != KDTREE_OK) return status;
  const GateFlags flags =
      gate_flags(std::atomic_ref(params->word->mode).load(std::memory_order_relaxed));
  const int64_t count = int64_t{params->batch} + 1;
  if (params->qo_indptr_bits == 64)
    gate_copy<int64_t>(params->qo_indptr, params->gated_qo_indptr, count, flags.engine != 0);
  else
    gate_copy<int32_t>(params->qo_indptr, params->gated_qo_indptr, count, flags.engine != 0);
  gate_copy<int32_t>(params->kv_indptr, params->gated_kv_indptr, count, flags.engine != 0);
  params->flags[0] = flags.kernel;
  params->flags[1] = flags.compare;
  params->flags[2] = flags.engine;
  params->flags[3] = flags.mode;
  const uint32_t look = std::atomic_ref(params->word->look).load(std::memory_order_relaxed);
  params->flags[4] = look != params->word->looked ? 1 : 0;
  params->word->looked = look;
  std::fill(params->flags + 5, params->flags + KDTREE_GATE_FLAGS, 0);
  std::atomic_ref(params->word->steps[flags.mode]).fetch_add(1, std::memory_order_relaxed);
  return KDTREE_OK;
}

int kdtree_tick_cpu(kdtree_gate_word* word) {
  if (const int status = kdtree::check(word); status != KDTREE_OK) return status;
  std::atomic_ref(word->ticks).fetch_add(1, std::memory_order_relaxed);
  return KDTREE_OK;
}
