// SPDX-License-Identifier: Apache-2.0
#include "agent/nvml/gpu_reader.h"

#include <algorithm>

namespace kdtree {
namespace {

constexpr double kPcieUnit = 1000;  // NVML: "throughput in KB/s"
constexpr double kMegahertz = 1e6;
constexpr std::size_t kMostProcesses = 1024;

// A value beside the main ones: not being allowed to read it is no fault of the GPU.
bool bad_for_others(nvmlReturn_t result) {
  return result != NVML_SUCCESS && result != NVML_ERROR_NO_PERMISSION && !only_unknown(result);
}

}  // namespace

bool only_unknown(nvmlReturn_t result) {
  switch (result) {
    case NVML_ERROR_NOT_SUPPORTED:
    case NVML_ERROR_FUNCTION_NOT_FOUND:
    case NVML_ERROR_NO_DATA:
    case NVML_ERROR_NOT_READY:
    case NVML_ERROR_NOT_FOUND:
    case NVML_ERROR_ARGUMENT_VERSION_MISMATCH:
    case NVML_ERROR_DEPRECATED:
      return true;
    default:
      return false;
  }
}

GpuReader::GpuReader(const NvmlLibrary& nvml, nvmlDevice_t device, NvmlCaller caller)
    : nvml_(nvml), device_(device), caller_(std::move(caller)), gpm_(nvml, device) {}

nvmlReturn_t GpuReader::read(GpuValues& values, std::vector<UtilizationSample>& samples,
                             std::chrono::microseconds period) {
  auto result = utilization_.read(nvml_, device_, caller_, period, samples);
  if (result != NVML_SUCCESS && !only_unknown(result)) return result;
  if (!samples.empty()) {
    double sum = 0;
    double highest = 0;
    for (const UtilizationSample& sample : samples) {
      sum += sample.value;
      highest = std::max(highest, sample.value);
    }
    values.utilization = sum / static_cast<double>(samples.size());
    values.utilization_max = highest;
  }
  for (auto step : {&GpuReader::read_memory, &GpuReader::read_power, &GpuReader::read_temperature,
                    &GpuReader::read_clocks})
    if (result = (this->*step)(values); bad_for_others(result)) return result;
  gpm_.read(caller_, values.gpm);
  return NVML_SUCCESS;
}

nvmlReturn_t GpuReader::read_memory(GpuValues& values) {
  nvmlMemory_v2_t memory{};
  memory.version = nvmlMemory_v2;
  nvmlReturn_t result = ask(nvml_.memory_v2, &memory);
  if (result == NVML_SUCCESS) {
    values.memory_used_bytes = memory.used;
    values.memory_total_bytes = memory.total;
  }
  if (!only_unknown(result)) return result;
  nvmlMemory_t older{};
  result = ask(nvml_.memory, &older);
  if (result == NVML_SUCCESS) {
    values.memory_used_bytes = older.used;
    values.memory_total_bytes = older.total;
  }
  return result;
}

nvmlReturn_t GpuReader::read_power(GpuValues& values) {
  unsigned milliwatts = 0;
  auto result = ask(nvml_.power, &milliwatts);
  if (result == NVML_SUCCESS) values.power_watts = milliwatts / 1000.0;
  if (bad_for_others(result)) return result;
  unsigned long long millijoules = 0;
  result = ask(nvml_.energy, &millijoules);
  if (result == NVML_SUCCESS) values.energy_joules = static_cast<double>(millijoules) / 1000.0;
  return result;
}

nvmlReturn_t GpuReader::read_temperature(GpuValues& values) {
  nvmlTemperature_t reading{};
  reading.version = nvmlTemperature_v1;
  reading.sensorType = NVML_TEMPERATURE_GPU;
  auto result = ask(nvml_.temperature_v, &reading);
  if (result == NVML_SUCCESS) values.temperature_celsius = reading.temperature;
  if (!only_unknown(result)) return result;
  unsigned celsius = 0;
  result = ask(nvml_.temperature, NVML_TEMPERATURE_GPU, &celsius);
  if (result == NVML_SUCCESS) values.temperature_celsius = celsius;
  return result;
}

nvmlReturn_t GpuReader::read_clocks(GpuValues& values) {
  unsigned megahertz = 0;
  auto result = ask(nvml_.clock, NVML_CLOCK_SM, &megahertz);
  if (result == NVML_SUCCESS) values.sm_clock_hertz = megahertz * kMegahertz;
  if (bad_for_others(result)) return result;
  result = ask(nvml_.clock, NVML_CLOCK_MEM, &megahertz);
  if (result == NVML_SUCCESS) values.memory_clock_hertz = megahertz * kMegahertz;
  if (bad_for_others(result)) return result;
  unsigned long long mask = 0;
  result = ask(nvml_.clock_events, &mask);
  if (result == NVML_SUCCESS) {
    ClockEvents events{};
    for (std::size_t bit = 0; bit < events.size(); ++bit) events[bit] = (mask >> bit & 1) != 0;
    values.clock_events = events;
  }
  return result;
}

nvmlReturn_t GpuReader::read_slow(GpuSlowValues& values, bool pcie) {
  for (auto step : {&GpuReader::read_limits, &GpuReader::read_ecc, &GpuReader::read_processes})
    if (const auto result = (this->*step)(values); bad_for_others(result)) return result;
  if (!pcie) return NVML_SUCCESS;
  const auto result = read_pcie(values);
  return bad_for_others(result) ? result : NVML_SUCCESS;
}

nvmlReturn_t GpuReader::read_limits(GpuSlowValues& values) {
  unsigned value = 0;
  auto result = ask(nvml_.power_limit, &value);
  if (result == NVML_SUCCESS) values.power_limit_watts = value / 1000.0;
  if (bad_for_others(result)) return result;
  result = ask(nvml_.max_clock, NVML_CLOCK_SM, &value);
  if (result == NVML_SUCCESS) values.sm_clock_max_hertz = value * kMegahertz;
  if (bad_for_others(result)) return result;
  result = ask(nvml_.max_clock, NVML_CLOCK_MEM, &value);
  if (result == NVML_SUCCESS) values.memory_clock_max_hertz = value * kMegahertz;
  return result;
}

nvmlReturn_t GpuReader::read_ecc(GpuSlowValues& values) {
  unsigned long long errors = 0;
  auto result = ask(nvml_.ecc_errors, NVML_MEMORY_ERROR_TYPE_CORRECTED, NVML_VOLATILE_ECC, &errors);
  if (result == NVML_SUCCESS) values.ecc_corrected = errors;
  if (bad_for_others(result)) return result;
  result = ask(nvml_.ecc_errors, NVML_MEMORY_ERROR_TYPE_UNCORRECTED, NVML_VOLATILE_ECC, &errors);
  if (result == NVML_SUCCESS) values.ecc_uncorrected = errors;
  return result;
}

nvmlReturn_t GpuReader::read_processes(GpuSlowValues& values) {
  auto count = static_cast<unsigned>(processes_.size());
  auto result =
      ask(nvml_.compute_processes, &count, processes_.empty() ? nullptr : processes_.data());
  if (result == NVML_ERROR_INSUFFICIENT_SIZE && count <= kMostProcesses) {
    processes_.resize(count + 4);  // some may begin in between
    count = static_cast<unsigned>(processes_.size());
    result = ask(nvml_.compute_processes, &count, processes_.data());
  }
  if (result == NVML_ERROR_INSUFFICIENT_SIZE) return NVML_ERROR_NO_DATA;
  if (result != NVML_SUCCESS) return result;
  values.processes.emplace();
  for (unsigned i = 0; i < count; ++i) {
    GpuProcess process;
    process.pid = processes_[i].pid;
    if (processes_[i].usedGpuMemory != static_cast<unsigned long long>(NVML_VALUE_NOT_AVAILABLE))
      process.memory_bytes = processes_[i].usedGpuMemory;
    values.processes->push_back(process);
  }
  std::stable_sort(values.processes->begin(), values.processes->end(),
                   [](const GpuProcess& a, const GpuProcess& b) {
                     return a.memory_bytes.value_or(0) > b.memory_bytes.value_or(0);
                   });
  return result;
}

nvmlReturn_t GpuReader::read_pcie(GpuSlowValues& values) {
  const auto began = std::chrono::steady_clock::now();
  unsigned rate = 0;
  auto result = ask(nvml_.pcie_throughput, NVML_PCIE_UTIL_RX_BYTES, &rate);
  if (result == NVML_SUCCESS) values.pcie_receive_bytes_per_second = rate * kPcieUnit;
  if (result != NVML_SUCCESS) return result;
  result = ask(nvml_.pcie_throughput, NVML_PCIE_UTIL_TX_BYTES, &rate);
  if (result == NVML_SUCCESS) values.pcie_transmit_bytes_per_second = rate * kPcieUnit;
  values.pcie_took = std::chrono::steady_clock::now() - began;
  return result;
}

}  // namespace kdtree
