// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "agent/nvml/nvml_failure.h"

// Watches every GPU, each in a thread of its own, so that a call that never returns costs that
// GPU's values and nothing else. All NVML calls happen in those threads; snapshot() never waits for
// one.
namespace kdtree {

struct GpuSamplerOptions {
  std::string nvml_path;                           // "" = libnvidia-ml.so.1 as the loader finds it
  std::chrono::milliseconds period{1000};          // between two samples of a GPU
  std::chrono::milliseconds hung_after{5000};      // a call that takes longer counts as hung
  std::chrono::milliseconds values_valid{10'000};  // older values are not shown
  std::chrono::milliseconds retry{10'000};         // between two attempts at NVML as a whole
};

enum class GpuCondition { ok, lost, hung, no_permission, error };
std::string_view gpu_condition_name(GpuCondition condition);

// Values as read; nullopt = the GPU can't tell, or didn't in time.
struct GpuValues {
  std::optional<double> utilization;  // 0 to 1
  std::optional<std::uint64_t> memory_used_bytes;
  std::optional<std::uint64_t> memory_total_bytes;
  std::optional<double> power_watts;
  std::optional<double> temperature_celsius;
  std::optional<double> pcie_receive_bytes_per_second;
  std::optional<double> pcie_transmit_bytes_per_second;
};

struct XidCount {
  std::uint64_t events = 0;
  std::chrono::system_clock::time_point last;  // when the agent learned of it
};

struct GpuSnapshot {
  int index = 0;
  std::string uuid, name, pci_bus_id;     // "" = never read
  std::optional<GpuCondition> condition;  // nullopt: no answer yet, and none overdue
  std::string detail;                     // what NVML said, where condition is not ok
  std::optional<GpuValues> values;        // only while condition is ok and they are young enough
  std::optional<std::chrono::duration<double>>
      sample_age;                             // since the last good sample; nullopt: never one
  std::chrono::duration<double> busy{0};      // utilisation x time, over `observed`
  std::chrono::duration<double> observed{0};  // time for which utilisation is known
  std::map<std::uint64_t, XidCount> xids;
};

struct NvmlSnapshot {
  std::optional<NvmlError> failure;  // nullopt: NVML works and lists `visible` GPUs
  std::string driver;                // "" = unknown
  unsigned visible = 0;
  bool events = false;            // XID events of every visible GPU are being waited for
  std::vector<GpuSnapshot> gpus;  // every GPU ever seen, by index
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
