// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "agent/nvml/gpu_values.h"
#include "agent/nvml/nvml_library.h"

namespace kdtree {

using NvmlCall = std::function<nvmlReturn_t()>;
using NvmlCaller = std::function<nvmlReturn_t(const NvmlCall&)>;  // makes the call, under a clock

struct UtilizationSample {
  std::chrono::microseconds at{};  // on NVML's clock
  double value = 0;                // 0 to 1
};

// What NVML's own sampler saw since the last call, oldest first, so that a burst between two
// readings is not missed. Where a GPU has no sample buffer, or nothing new in it: its present rate.
class UtilizationReader {
 public:
  nvmlReturn_t read(const NvmlLibrary& nvml, nvmlDevice_t device, const NvmlCaller& caller,
                    std::chrono::microseconds period, std::vector<UtilizationSample>& out);

 private:
  nvmlReturn_t read_buffer(const NvmlLibrary& nvml, nvmlDevice_t device, const NvmlCaller& caller);

  std::vector<nvmlSample_t> buffer_;
  unsigned long long last_seen_ = 0;
  int empty_readings_ = 0;
};

// GPM ("GPU performance monitoring", Hopper and newer, and what the driver allows): counters of two
// samples at least kLeastSpan apart.
class GpmReader {
 public:
  static constexpr std::chrono::milliseconds kLeastSpan{100};

  GpmReader(const NvmlLibrary& nvml, nvmlDevice_t device) : nvml_(nvml), device_(device) {}
  ~GpmReader();
  GpmReader(const GpmReader&) = delete;
  GpmReader& operator=(const GpmReader&) = delete;

  // Leaves `out` as it is where there is nothing to tell; less than kLeastSpan after the last
  // reading that one is told again. Never harms the other readings: what NVML says against GPM is
  // not kept.
  void read(const NvmlCaller& caller, GpmValues& out);

 private:
  bool begin(const NvmlCaller& caller);

  const NvmlLibrary& nvml_;
  nvmlDevice_t device_;
  enum class Use { unknown, yes, no } use_ = Use::unknown;
  nvmlGpmSample_t before_ = nullptr, now_ = nullptr;
  std::optional<std::chrono::steady_clock::time_point> before_at_;
  GpmValues last_;
  std::unique_ptr<nvmlGpmMetricsGet_t> wanted_;
};

// Everything that is read of one GPU through one handle. Not for two threads at once.
// Errors: an NVML code that says that the GPU itself is in a bad way; a value that the GPU, the
// driver or the user can't have is no error, it stays unknown.
class GpuReader {
 public:
  GpuReader(const NvmlLibrary& nvml, nvmlDevice_t device, NvmlCaller caller);

  nvmlReturn_t read(GpuValues& values, std::vector<UtilizationSample>& samples,
                    std::chrono::microseconds period);
  // `pcie`: the throughput counters too, 20 ms each by NVML's own account, and more on a busy host.
  nvmlReturn_t read_slow(GpuSlowValues& values, bool pcie);

 private:
  nvmlReturn_t read_memory(GpuValues& values);
  nvmlReturn_t read_power(GpuValues& values);
  nvmlReturn_t read_temperature(GpuValues& values);
  nvmlReturn_t read_clocks(GpuValues& values);
  nvmlReturn_t read_limits(GpuSlowValues& values);
  nvmlReturn_t read_ecc(GpuSlowValues& values);
  nvmlReturn_t read_processes(GpuSlowValues& values);
  nvmlReturn_t read_pcie(GpuSlowValues& values);

  template <typename Function, typename... Arguments>
  nvmlReturn_t ask(Function function, Arguments... arguments) {
    if (function == nullptr) return NVML_ERROR_FUNCTION_NOT_FOUND;
    return caller_([&] { return function(device_, arguments...); });
  }

  const NvmlLibrary& nvml_;
  nvmlDevice_t device_;
  NvmlCaller caller_;
  UtilizationReader utilization_;
  GpmReader gpm_;
  std::vector<nvmlProcessInfo_t> processes_;
};

// Answers that mean "this GPU, driver or user can't have this value", and nothing worse.
bool only_unknown(nvmlReturn_t result);

}  // namespace kdtree
