// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <chrono>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "agent/nvml/gpu_values.h"
#include "agent/nvml/nvml_failure.h"

// Watches every GPU, each in a thread of its own, so that a call that never returns costs that
// GPU's values and nothing else. All NVML calls happen in those threads; snapshot() never waits for
// one. GPUs are told apart by UUID: after a GPU fell off the bus NVML may number the others anew.
namespace kdtree {

struct GpuSamplerOptions {
  std::string nvml_path;                           // "" = libnvidia-ml.so.1 as the loader finds it
  std::chrono::milliseconds period{1000};          // between two samples of a GPU
  std::chrono::milliseconds slow_period{10'000};   // between two readings of GpuSlowValues
  std::chrono::milliseconds hung_after{5000};      // a call that takes longer counts as hung
  std::chrono::milliseconds values_valid{10'000};  // older values are not shown; slow ones: this
                                                   // and slow_period
  std::chrono::milliseconds retry{10'000};         // between two attempts at NVML as a whole
  std::chrono::milliseconds look_again{60'000};    // while a GPU is lost: NVML shows one that
                                                 // returned to a new nvmlInit alone; doubles to 16x
};

struct GpuSnapshot {
  int index = 0;                          // NVML's, as last seen
  std::string uuid, name, pci_bus_id;     // "" = never read
  std::optional<GpuCondition> condition;  // nullopt: no answer yet, and none overdue
  std::string detail;                     // what NVML said, where condition is not ok
  std::optional<GpuValues> values;        // only while condition is ok and they are young enough
  std::optional<GpuSlowValues> slow;      // as `values`
  std::optional<std::chrono::duration<double>>
      sample_age;  // since the last good sample; nullopt: never one
  std::optional<std::chrono::duration<double>> sample_took;  // all calls of the last good sample
  std::optional<std::chrono::duration<double>> slow_age;     // of `slow`
  std::chrono::duration<double> busy{0};                     // utilisation x time, over `observed`
  std::chrono::duration<double> observed{0};                 // time for which utilisation is known
  UtilizationSpread spread;
  std::array<std::chrono::duration<double>, kClockEvents.size()> clock_event_time{};
  std::map<std::uint64_t, XidCount> xids;
};

struct NvmlSnapshot {
  std::optional<NvmlError> failure;  // nullopt: NVML works and lists `visible` GPUs
  std::string driver;                // "" = unknown
  unsigned visible = 0;
  std::uint64_t session = 0;      // counts attempts at nvmlInit
  bool events = false;            // XID events of every visible GPU are being waited for
  std::vector<GpuSnapshot> gpus;  // every GPU ever seen, by index and uuid
};

class GpuSampler {
 public:
  explicit GpuSampler(GpuSamplerOptions options);
  ~GpuSampler();  // waits a moment for the threads; one that hangs in NVML is left behind
  GpuSampler(const GpuSampler&) = delete;
  GpuSampler& operator=(const GpuSampler&) = delete;

  NvmlSnapshot snapshot() const;

  struct State;  // inside: sampler_state.h

 private:
  std::shared_ptr<State> state_;
};

}  // namespace kdtree
