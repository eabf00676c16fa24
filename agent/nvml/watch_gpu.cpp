// SPDX-License-Identifier: Apache-2.0
#include "agent/nvml/sampler_state.h"

namespace kdtree {
namespace {

constexpr double kPcieUnit = 1000;  // NVML: "throughput in KB/s"

GpuCondition condition_of(nvmlReturn_t result) {
  switch (result) {
    case NVML_ERROR_GPU_IS_LOST:
      return GpuCondition::lost;
    case NVML_ERROR_NO_PERMISSION:
      return GpuCondition::no_permission;
    default:
      return GpuCondition::error;
  }
}

// Answers that mean "this GPU, driver or user can't have this value", and nothing worse.
bool only_unknown(nvmlReturn_t result) {
  return result == NVML_ERROR_NOT_SUPPORTED || result == NVML_ERROR_FUNCTION_NOT_FOUND ||
         result == NVML_ERROR_NO_DATA || result == NVML_ERROR_NOT_READY ||
         result == NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
}

class GpuWatcher {
 public:
  GpuWatcher(GpuSampler::State& state, const SamplerRun& run, int index)
      : state_(state), nvml_(run.session->nvml()), index_(index), slot_(slot_at(state, index)) {}

  void sample() {
    if (device_ == nullptr && !find_device()) return;
    GpuValues values;
    if (!read_utilization(values) || !read_memory(values) || !read_power(values) ||
        !read_temperature(values))
      return;
    keep(values);
    read_pcie();
  }

 private:
  static GpuSlot& slot_at(GpuSampler::State& state, int index) {
    const std::lock_guard lock(state.mutex);
    return state.gpus[index];  // map nodes stay where they are
  }

  nvmlReturn_t call(const std::function<nvmlReturn_t()>& what) {
    return timed_call(state_, slot_.in_call_since, what);
  }

  // True: go on (the value may still be unknown). False: the GPU is in a bad way, and that was
  // recorded.
  bool passes(nvmlReturn_t result) {
    if (result == NVML_SUCCESS || only_unknown(result)) return true;
    const std::lock_guard lock(state_.mutex);
    slot_.condition = condition_of(result);
    slot_.detail = nvml_.text_of(result);
    device_ = nullptr;
    integrated_to_.reset();
    return false;
  }

  bool find_device() {
    nvmlDevice_t device = nullptr;
    const auto result =
        call([&] { return nvml_.device_by_index(static_cast<unsigned>(index_), &device); });
    if (result != NVML_SUCCESS) {
      passes(result == NVML_ERROR_NOT_SUPPORTED ? NVML_ERROR_UNKNOWN : result);
      return false;
    }
    char name[NVML_DEVICE_NAME_V2_BUFFER_SIZE] = "";
    char uuid[NVML_DEVICE_UUID_V2_BUFFER_SIZE] = "";
    nvmlPciInfo_t pci{};
    if (nvml_.name != nullptr &&
        !passes(call([&] { return nvml_.name(device, name, sizeof name); })))
      return false;
    if (nvml_.uuid != nullptr &&
        !passes(call([&] { return nvml_.uuid(device, uuid, sizeof uuid); })))
      return false;
    if (nvml_.pci_info != nullptr && !passes(call([&] { return nvml_.pci_info(device, &pci); })))
      return false;
    const std::lock_guard lock(state_.mutex);
    slot_.name = name;
    slot_.uuid = uuid;
    slot_.pci_bus_id = pci.busId;
    device_ = device;
    return true;
  }

  bool read_utilization(GpuValues& values) {
    if (nvml_.utilization == nullptr) return true;
    nvmlUtilization_t rates{};
    const auto result = call([&] { return nvml_.utilization(device_, &rates); });
    if (result == NVML_SUCCESS && rates.gpu <= 100) values.utilization = rates.gpu / 100.0;
    return passes(result);
  }

  bool read_memory(GpuValues& values) {
    nvmlReturn_t result = NVML_ERROR_FUNCTION_NOT_FOUND;
    if (nvml_.memory_v2 != nullptr) {
      nvmlMemory_v2_t memory{};
      memory.version = nvmlMemory_v2;
      result = call([&] { return nvml_.memory_v2(device_, &memory); });
      if (result == NVML_SUCCESS) {
        values.memory_used_bytes = memory.used;
        values.memory_total_bytes = memory.total;
      }
    }
    if (only_unknown(result) && nvml_.memory != nullptr) {
      nvmlMemory_t memory{};
      result = call([&] { return nvml_.memory(device_, &memory); });
      if (result == NVML_SUCCESS) {
        values.memory_used_bytes = memory.used;
        values.memory_total_bytes = memory.total;
      }
    }
    return passes(result);
  }

  bool read_power(GpuValues& values) {
    if (nvml_.power == nullptr) return true;
    unsigned milliwatts = 0;
    const auto result = call([&] { return nvml_.power(device_, &milliwatts); });
    if (result == NVML_SUCCESS) values.power_watts = milliwatts / 1000.0;
    return result == NVML_ERROR_NO_PERMISSION || passes(result);
  }

  bool read_temperature(GpuValues& values) {
    nvmlReturn_t result = NVML_ERROR_FUNCTION_NOT_FOUND;
    if (nvml_.temperature_v != nullptr) {
      nvmlTemperature_t reading{};
      reading.version = nvmlTemperature_v1;
      reading.sensorType = NVML_TEMPERATURE_GPU;
      result = call([&] { return nvml_.temperature_v(device_, &reading); });
      if (result == NVML_SUCCESS) values.temperature_celsius = reading.temperature;
    }
    if (only_unknown(result) && nvml_.temperature != nullptr) {
      unsigned celsius = 0;
      result = call([&] { return nvml_.temperature(device_, NVML_TEMPERATURE_GPU, &celsius); });
      if (result == NVML_SUCCESS) values.temperature_celsius = celsius;
    }
    return result == NVML_ERROR_NO_PERMISSION || passes(result);
  }

  // PCIe counters take 20 ms each and more on a busy host: after the rest, and never at its cost.
  void read_pcie() {
    if (nvml_.pcie_throughput == nullptr) return;
    std::optional<double> rates[2];
    constexpr nvmlPcieUtilCounter_t kCounters[] = {NVML_PCIE_UTIL_RX_BYTES,
                                                   NVML_PCIE_UTIL_TX_BYTES};
    for (int i = 0; i < 2; ++i) {
      unsigned value = 0;
      const auto result =
          call([&] { return nvml_.pcie_throughput(device_, kCounters[i], &value); });
      if (result == NVML_SUCCESS) rates[i] = value * kPcieUnit;
      if (result != NVML_ERROR_NO_PERMISSION && !passes(result)) return;
    }
    const std::lock_guard lock(state_.mutex);
    slot_.values.pcie_receive_bytes_per_second = rates[0];
    slot_.values.pcie_transmit_bytes_per_second = rates[1];
    slot_.pcie_at = std::chrono::steady_clock::now();
  }

  void keep(GpuValues values) {
    const auto now = std::chrono::steady_clock::now();
    const std::lock_guard lock(state_.mutex);
    values.pcie_receive_bytes_per_second = slot_.values.pcie_receive_bytes_per_second;
    values.pcie_transmit_bytes_per_second = slot_.values.pcie_transmit_bytes_per_second;
    if (values.utilization && integrated_to_) {
      // Three periods without a sample are a gap, not a long sample.
      const std::chrono::duration<double> span = now - *integrated_to_;
      if (span <= 3 * state_.options.period) {
        slot_.busy += span * *values.utilization;
        slot_.observed += span;
      }
    }
    integrated_to_ = values.utilization ? std::optional(now) : std::nullopt;
    slot_.values = values;
    slot_.condition = GpuCondition::ok;
    slot_.detail.clear();
    slot_.sampled_at = now;
  }

  GpuSampler::State& state_;
  const NvmlLibrary& nvml_;
  int index_;
  GpuSlot& slot_;
  nvmlDevice_t device_ = nullptr;
  std::optional<SteadyTime> integrated_to_;
};

}  // namespace

void watch_gpu(const SharedState& state, const SharedRun& run, int index) {
  GpuWatcher watcher(*state, *run, index);
  auto next = std::chrono::steady_clock::now();
  do {
    watcher.sample();
    next = std::max(next + state->options.period, std::chrono::steady_clock::now());
  } while (sleep_until(*state, *run, next));
}

}  // namespace kdtree
