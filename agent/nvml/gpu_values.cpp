// SPDX-License-Identifier: Apache-2.0
#include "agent/nvml/gpu_values.h"

#include <algorithm>
#include <numeric>

namespace kdtree {

std::string_view gpu_condition_name(GpuCondition condition) {
  switch (condition) {
    case GpuCondition::ok:
      return "ok";
    case GpuCondition::lost:
      return "lost";
    case GpuCondition::hung:
      return "hung";
    case GpuCondition::reset_required:
      return "reset_required";
    case GpuCondition::no_permission:
      return "no_permission";
    case GpuCondition::error:
      return "error";
  }
  return "error";
}

void UtilizationSpread::add(double value) {
  const auto* const bound = std::lower_bound(kBounds.begin(), kBounds.end() - 1, value);
  ++counts[static_cast<std::size_t>(bound - kBounds.begin())];
  sum += value;
}

std::uint64_t UtilizationSpread::total() const {
  return std::accumulate(counts.begin(), counts.end(), std::uint64_t{0});
}

}  // namespace kdtree
