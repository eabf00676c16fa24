// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

// What one GPU says of itself, in base units; nullopt = the GPU can't tell, or didn't in time.
namespace kdtree {

enum class GpuCondition { ok, lost, hung, reset_required, no_permission, error };
std::string_view gpu_condition_name(GpuCondition condition);

// Why clocks are not as high as they could be; the order of NVML's bits.
inline constexpr std::array<std::string_view, 11> kClockEvents{
    "idle",       "application_clocks", "software_power_cap", "hardware_slowdown",
    "sync_boost", "software_thermal",   "hardware_thermal",   "hardware_power_brake",
    "display",    "board_limit",        "reliability"};
using ClockEvents = std::array<bool, kClockEvents.size()>;

// How NVML's utilisation samples (0 to 1) are spread, since the agent first saw the GPU.
struct UtilizationSpread {
  static constexpr std::array<double, 10> kBounds{0,    0.05, 0.1,  0.25, 0.5,
                                                  0.75, 0.9,  0.95, 0.99, 1};  // upper, inclusive
  std::array<std::uint64_t, kBounds.size()> counts{};                          // not cumulative
  double sum = 0;

  void add(double value);
  std::uint64_t total() const;
};

struct GpuProcess {
  unsigned pid = 0;  // as the driver knows it: the host's, also in a container
  std::optional<std::uint64_t> memory_bytes;  // device memory
};

// NVML's GPM counters over the last period.
struct GpmValues {
  std::optional<double> sm_active, sm_occupancy, tensor_active, dram_active;  // 0 to 1
  std::optional<double> pcie_receive_bytes_per_second, pcie_transmit_bytes_per_second;
};

// Read each period.
struct GpuValues {
  std::optional<double> utilization;      // 0 to 1, mean of the samples since the last reading
  std::optional<double> utilization_max;  // highest sample of the last kMaxSpan
  std::optional<std::uint64_t> memory_used_bytes, memory_total_bytes;
  std::optional<double> power_watts;
  std::optional<double> energy_joules;  // since the driver was loaded
  std::optional<double> temperature_celsius;
  std::optional<double> sm_clock_hertz, memory_clock_hertz;
  std::optional<ClockEvents> clock_events;
  GpmValues gpm;
};
inline constexpr std::chrono::seconds kMaxSpan{15};

// Read each slow period, after the others: what changes seldom, or costs much.
struct GpuSlowValues {
  std::optional<double> power_limit_watts;
  std::optional<double> sm_clock_max_hertz, memory_clock_max_hertz;
  std::optional<std::uint64_t> ecc_corrected, ecc_uncorrected;  // since the driver was loaded
  std::optional<std::vector<GpuProcess>> processes;             // most memory first
  std::optional<double> pcie_receive_bytes_per_second, pcie_transmit_bytes_per_second;
  std::optional<std::chrono::duration<double>> pcie_took;  // nullopt: not read here (GPM has it)
};

struct XidCount {
  std::uint64_t events = 0;
  std::chrono::system_clock::time_point last;  // when the agent learned of it
};

}  // namespace kdtree
