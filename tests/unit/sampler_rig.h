// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <functional>
#include <thread>

#include "agent/nvml/gpu_sampler.h"
#include "tests/unit/fake_nvml_control.h"

// A sampler over the fake NVML that is quick enough for tests.
namespace kdtree {

inline GpuSamplerOptions quick(const std::string& library = FakeNvml::library()) {
  using namespace std::chrono_literals;
  GpuSamplerOptions options;
  options.nvml_path = library;
  options.period = 20ms;
  options.slow_period = 20ms;
  options.hung_after = 200ms;
  options.values_valid = 400ms;
  options.retry = 100ms;
  options.look_again = 200ms;
  return options;
}

// Waits until the snapshot is as wanted; the last one otherwise.
inline NvmlSnapshot wait_for(const GpuSampler& sampler,
                             const std::function<bool(const NvmlSnapshot&)>& wanted) {
  NvmlSnapshot last;
  for (int i = 0; i < 1000; ++i) {
    last = sampler.snapshot();
    if (wanted(last)) break;
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  return last;
}

inline bool all_have_pcie(const NvmlSnapshot& seen) {
  return seen.gpus.size() == 8 &&
         std::all_of(seen.gpus.begin(), seen.gpus.end(), [](const GpuSnapshot& gpu) {
           return gpu.values && gpu.slow && gpu.slow->pcie_transmit_bytes_per_second;
         });
}

}  // namespace kdtree
