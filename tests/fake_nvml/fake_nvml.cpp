// SPDX-License-Identifier: Apache-2.0
// The functions of nvml.h that kdtree uses, answered from instructions (README.md).
#pragma GCC visibility push(default)
#define NVML_NO_UNVERSIONED_FUNC_DEFS
#include <nvml.h>
#pragma GCC visibility pop

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <thread>
#include <utility>

#include "tests/fake_nvml/instructions.h"

using fake_nvml::Fail;

struct nvmlDevice_st {
  int index;
  std::atomic<int> load{0};     // of the driver that it was asked from
  std::atomic<int> tripped{0};  // nvmlReturn_t that stays until nvmlInit
};

struct nvmlGpmSample_st {
  int index = -1;
};

struct nvmlEventSet_st {
  std::mutex mutex;
  std::set<int> gpus;
};

namespace {

constexpr unsigned long long kTotalBytes = 96ull << 30;
constexpr auto kLook = std::chrono::milliseconds(10);
constexpr auto kLookForEvents = std::chrono::milliseconds(200);

std::atomic<int> initialised{0};
std::atomic<int> loaded{0};  // the driver's loading that nvmlInit found
std::mutex delivered_mutex;
std::set<std::uint64_t>& delivered =
    *new std::set<std::uint64_t>;  // outlives threads that still call at exit
nvmlDevice_st devices[fake_nvml::kMaxGpus] = {{0}, {1}, {2},  {3},  {4},  {5},  {6},  {7},
                                              {8}, {9}, {10}, {11}, {12}, {13}, {14}, {15}};
constexpr double kBufferSamples = 120;
using Gpu = fake_nvml::Gpu;

nvmlReturn_t code_of(Fail fail) {
  switch (fail) {
    case Fail::none:
      return NVML_SUCCESS;
    case Fail::lost:
      return NVML_ERROR_GPU_IS_LOST;
    case Fail::no_permission:
      return NVML_ERROR_NO_PERMISSION;
    case Fail::reset_required:
      return NVML_ERROR_RESET_REQUIRED;
    case Fail::driver_mismatch:
      return NVML_ERROR_LIB_RM_VERSION_MISMATCH;
    case Fail::driver_not_loaded:
      return NVML_ERROR_DRIVER_NOT_LOADED;
    case Fail::unknown:
    case Fail::hung:
      break;
  }
  return NVML_ERROR_UNKNOWN;
}

nvmlReturn_t put_text(const std::string& value, char* to, unsigned length) {
  if (to == nullptr) return NVML_ERROR_INVALID_ARGUMENT;
  if (value.size() >= length) return NVML_ERROR_INSUFFICIENT_SIZE;
  std::memcpy(to, value.c_str(), value.size() + 1);
  return NVML_SUCCESS;
}

struct Look {
  nvmlReturn_t result = NVML_ERROR_UNKNOWN;
  std::shared_ptr<const fake_nvml::Instructions> all;
  const Gpu* gpu = nullptr;  // where result is success
};

// What calls on `device` do now: a failure, or success and its GPU. Doesn't return while the GPU
// hangs.
Look look_at(nvmlDevice_t device, const char* what = nullptr, bool new_handle = false) {
  if (initialised == 0) return {NVML_ERROR_UNINITIALIZED, nullptr, nullptr};
  if (device == nullptr) return {NVML_ERROR_INVALID_ARGUMENT, nullptr, nullptr};
  while (true) {
    auto now = fake_nvml::instructions_now();
    if (!now || now->load != loaded) return {};
    if (new_handle) device->load = now->load;
    if (device->load != now->load) return {};
    if (device->index >= now->count) return {NVML_ERROR_GPU_IS_LOST, nullptr, nullptr};
    if (device->tripped != NVML_SUCCESS)
      return {static_cast<nvmlReturn_t>(device->tripped.load()), nullptr, nullptr};
    const Gpu& gpu = now->gpus[static_cast<std::size_t>(device->index)];
    if (gpu.fail == Fail::hung) {
      std::this_thread::sleep_for(kLook);
      continue;
    }
    if (gpu.fail != Fail::none && gpu.until_init) device->tripped = code_of(gpu.fail);
    if (gpu.fail != Fail::none) return {code_of(gpu.fail), nullptr, nullptr};
    if (what != nullptr && gpu.not_supported.count(what) > 0)
      return {NVML_ERROR_NOT_SUPPORTED, nullptr, nullptr};
    return {NVML_SUCCESS, now, &gpu};
  }
}

// Puts one member of the GPU where the caller wants it.
template <typename Member, typename Target>
nvmlReturn_t tell(nvmlDevice_t device, const char* what, Member Gpu::*member, Target* to) {
  const Look seen = look_at(device, what);
  if (seen.result == NVML_SUCCESS) *to = static_cast<Target>(seen.gpu->*member);
  return seen.result;
}

}  // namespace

extern "C" {

nvmlReturn_t nvmlInit_v2() {
  while (true) {
    const auto now = fake_nvml::instructions_now();
    if (!now) return NVML_ERROR_UNKNOWN;
    if (now->init == Fail::hung) {
      std::this_thread::sleep_for(kLook);
      continue;
    }
    if (now->init == Fail::none) {
      loaded = now->load;
      for (nvmlDevice_st& device : devices) device.tripped = NVML_SUCCESS;
      ++initialised;
    }
    return code_of(now->init);
  }
}

nvmlReturn_t nvmlShutdown() {
  if (initialised == 0) return NVML_ERROR_UNINITIALIZED;
  --initialised;
  return NVML_SUCCESS;
}

const char* nvmlErrorString(nvmlReturn_t result) {
  switch (result) {
    case NVML_SUCCESS:
      return "Success";
    case NVML_ERROR_UNINITIALIZED:
      return "Uninitialized";
    case NVML_ERROR_INVALID_ARGUMENT:
      return "Invalid Argument";
    case NVML_ERROR_NOT_SUPPORTED:
      return "Not Supported";
    case NVML_ERROR_NO_PERMISSION:
      return "Insufficient Permissions";
    case NVML_ERROR_DRIVER_NOT_LOADED:
      return "Driver Not Loaded";
    case NVML_ERROR_GPU_IS_LOST:
      return "GPU is lost";
    case NVML_ERROR_RESET_REQUIRED:
      return "GPU requires restart";
    case NVML_ERROR_LIB_RM_VERSION_MISMATCH:
      return "Driver/library version mismatch";
    default:
      return "Unknown Error";
  }
}

nvmlReturn_t nvmlSystemGetDriverVersion(char* version, unsigned int length) {
  if (initialised == 0) return NVML_ERROR_UNINITIALIZED;
  const auto now = fake_nvml::instructions_now();
  return now ? put_text(now->driver, version, length) : NVML_ERROR_UNKNOWN;
}

nvmlReturn_t nvmlDeviceGetCount_v2(unsigned int* count) {
  if (initialised == 0) return NVML_ERROR_UNINITIALIZED;
  const auto now = fake_nvml::instructions_now();
  if (!now || now->load != loaded) return NVML_ERROR_UNKNOWN;
  *count = static_cast<unsigned>(now->count);
  return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetHandleByIndex_v2(unsigned int index, nvmlDevice_t* device) {
  if (index >= fake_nvml::kMaxGpus) return NVML_ERROR_INVALID_ARGUMENT;
  const nvmlReturn_t result = look_at(&devices[index], nullptr, true).result;
  if (result == NVML_SUCCESS) *device = &devices[index];
  return result;
}

nvmlReturn_t nvmlDeviceGetName(nvmlDevice_t device, char* name, unsigned int length) {
  const nvmlReturn_t result = look_at(device).result;
  return result == NVML_SUCCESS ? put_text("NVIDIA RTX PRO 6000 Blackwell", name, length) : result;
}

nvmlReturn_t nvmlDeviceGetUUID(nvmlDevice_t device, char* uuid, unsigned int length) {
  const Look seen = look_at(device);
  return seen.result == NVML_SUCCESS ? put_text(seen.gpu->uuid, uuid, length) : seen.result;
}

nvmlReturn_t nvmlDeviceGetPciInfo_v3(nvmlDevice_t device, nvmlPciInfo_t* pci) {
  const nvmlReturn_t result = look_at(device).result;
  if (result != NVML_SUCCESS) return result;
  *pci = {};
  pci->bus = static_cast<unsigned>(0x10 * (device->index + 1));
  std::snprintf(pci->busId, sizeof pci->busId, "00000000:%02X:00.0", pci->bus & 0xff);
  std::snprintf(pci->busIdLegacy, sizeof pci->busIdLegacy, "0000:%02X:00.0", pci->bus & 0xff);
  return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetCudaComputeCapability(nvmlDevice_t device, int* major, int* minor) {
  const nvmlReturn_t result = look_at(device).result;
  if (result != NVML_SUCCESS) return result;
  *major = 12;
  *minor = 0;
  return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetUtilizationRates(nvmlDevice_t device, nvmlUtilization_t* utilization) {
  const Look seen = look_at(device, "utilization");
  if (seen.result != NVML_SUCCESS) return seen.result;
  const unsigned percent = seen.gpu->utilization_at(fake_nvml::boot_ms(), device->index);
  *utilization = {percent, percent / 2};
  return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetSamples(nvmlDevice_t device, nvmlSamplingType_t type,
                                  unsigned long long last_seen_us, nvmlValueType_t* value_type,
                                  unsigned int* count, nvmlSample_t* samples) {
  const Look seen = look_at(device, "samples");
  if (seen.result != NVML_SUCCESS) return seen.result;
  if (type != NVML_GPU_UTILIZATION_SAMPLES || seen.gpu->not_supported.count("utilization") > 0)
    return NVML_ERROR_NOT_SUPPORTED;
  *value_type = NVML_VALUE_TYPE_UNSIGNED_INT;
  if (samples == nullptr) {
    *count = static_cast<unsigned>(kBufferSamples);
    return NVML_SUCCESS;
  }
  const double every = seen.gpu->sample_ms;
  const auto newest = static_cast<std::uint64_t>(fake_nvml::boot_ms() / every);
  const auto oldest = newest - static_cast<std::uint64_t>(kBufferSamples) + 1;
  unsigned filled = 0;
  for (std::uint64_t i = oldest; i <= newest && filled < *count; ++i) {
    const double at_ms = static_cast<double>(i) * every;
    const auto at_us = static_cast<unsigned long long>(at_ms * 1000);
    if (at_us <= last_seen_us) continue;
    samples[filled] = {};
    samples[filled].timeStamp = at_us;
    samples[filled++].sampleValue.uiVal = seen.gpu->utilization_at(at_ms, device->index);
  }
  *count = filled;
  return filled > 0 ? NVML_SUCCESS : NVML_ERROR_NOT_FOUND;
}

nvmlReturn_t nvmlDeviceGetMemoryInfo(nvmlDevice_t device, nvmlMemory_t* memory) {
  const Look seen = look_at(device, "memory");
  if (seen.result == NVML_SUCCESS)
    *memory = {kTotalBytes, kTotalBytes - seen.gpu->memory_used, seen.gpu->memory_used};
  return seen.result;
}

nvmlReturn_t nvmlDeviceGetMemoryInfo_v2(nvmlDevice_t device, nvmlMemory_v2_t* memory) {
  if (memory->version != nvmlMemory_v2) return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
  const Look seen = look_at(device, "memory");
  if (seen.result == NVML_SUCCESS) {
    memory->total = kTotalBytes;
    memory->reserved = 512u << 20;
    memory->used = seen.gpu->memory_used;
    memory->free = kTotalBytes - seen.gpu->memory_used;
  }
  return seen.result;
}

nvmlReturn_t nvmlDeviceGetPowerUsage(nvmlDevice_t device, unsigned int* milliwatts) {
  return tell(device, "power", &Gpu::power_mw, milliwatts);
}

nvmlReturn_t nvmlDeviceGetEnforcedPowerLimit(nvmlDevice_t device, unsigned int* milliwatts) {
  return tell(device, "power_limit", &Gpu::power_limit_mw, milliwatts);
}

nvmlReturn_t nvmlDeviceGetTotalEnergyConsumption(nvmlDevice_t device,
                                                 unsigned long long* millijoules) {
  return tell(device, "energy", &Gpu::energy_mj, millijoules);
}

nvmlReturn_t nvmlDeviceGetTemperature(nvmlDevice_t device, nvmlTemperatureSensors_t,
                                      unsigned int* celsius) {
  return tell(device, "temperature", &Gpu::temperature, celsius);
}

nvmlReturn_t nvmlDeviceGetTemperatureV(nvmlDevice_t device, nvmlTemperature_t* temperature) {
  if (temperature->version != nvmlTemperature_v1) return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
  return tell(device, "temperature", &Gpu::temperature, &temperature->temperature);
}

nvmlReturn_t nvmlDeviceGetClockInfo(nvmlDevice_t device, nvmlClockType_t type,
                                    unsigned int* megahertz) {
  if (type != NVML_CLOCK_SM && type != NVML_CLOCK_MEM) return NVML_ERROR_NOT_SUPPORTED;
  return tell(device, "clocks", type == NVML_CLOCK_SM ? &Gpu::sm_mhz : &Gpu::memory_mhz, megahertz);
}

nvmlReturn_t nvmlDeviceGetMaxClockInfo(nvmlDevice_t device, nvmlClockType_t type,
                                       unsigned int* megahertz) {
  if (type != NVML_CLOCK_SM && type != NVML_CLOCK_MEM) return NVML_ERROR_NOT_SUPPORTED;
  return tell(device, "clocks", type == NVML_CLOCK_SM ? &Gpu::sm_max_mhz : &Gpu::memory_max_mhz,
              megahertz);
}

nvmlReturn_t nvmlDeviceGetCurrentClocksEventReasons(nvmlDevice_t device,
                                                    unsigned long long* reasons) {
  return tell(device, "clock_events", &Gpu::clock_events, reasons);
}

nvmlReturn_t nvmlDeviceGetTotalEccErrors(nvmlDevice_t device, nvmlMemoryErrorType_t type,
                                         nvmlEccCounterType_t, unsigned long long* errors) {
  return tell(
      device, "ecc",
      type == NVML_MEMORY_ERROR_TYPE_CORRECTED ? &Gpu::ecc_corrected : &Gpu::ecc_uncorrected,
      errors);
}

nvmlReturn_t nvmlDeviceGetComputeRunningProcesses_v3(nvmlDevice_t device, unsigned int* count,
                                                     nvmlProcessInfo_t* infos) {
  const Look seen = look_at(device, "processes");
  if (seen.result != NVML_SUCCESS) return seen.result;
  const auto& running = seen.gpu->processes;
  const unsigned room = std::exchange(*count, static_cast<unsigned>(running.size()));
  if (running.empty()) return NVML_SUCCESS;
  if (infos == nullptr || running.size() > room) return NVML_ERROR_INSUFFICIENT_SIZE;
  for (std::size_t i = 0; i < running.size(); ++i) {
    infos[i] = {};
    infos[i].pid = running[i].pid;
    infos[i].usedGpuMemory = running[i].memory;
  }
  return NVML_SUCCESS;
}

nvmlReturn_t nvmlGpmQueryDeviceSupport(nvmlDevice_t device, nvmlGpmSupport_t* support) {
  const Look seen = look_at(device);
  if (seen.result == NVML_SUCCESS) support->isSupportedDevice = seen.gpu->gpm.empty() ? 0 : 1;
  return seen.result;
}

nvmlReturn_t nvmlGpmSampleAlloc(nvmlGpmSample_t* sample) {
  *sample = new nvmlGpmSample_st;
  return NVML_SUCCESS;
}

nvmlReturn_t nvmlGpmSampleFree(nvmlGpmSample_t sample) {
  delete sample;
  return NVML_SUCCESS;
}

nvmlReturn_t nvmlGpmSampleGet(nvmlDevice_t device, nvmlGpmSample_t sample) {
  const Look seen = look_at(device, "gpm");
  if (seen.result == NVML_SUCCESS) sample->index = device->index;
  return seen.result;
}

nvmlReturn_t nvmlGpmMetricsGet(nvmlGpmMetricsGet_t* wanted) {
  if (wanted->version != NVML_GPM_METRICS_GET_VERSION) return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
  if (wanted->sample1->index < 0 || wanted->sample1->index != wanted->sample2->index)
    return NVML_ERROR_INVALID_ARGUMENT;
  const Look seen = look_at(&devices[wanted->sample1->index], "gpm");
  if (seen.result != NVML_SUCCESS) return seen.result;
  for (unsigned i = 0; i < wanted->numMetrics; ++i) {
    const auto found = seen.gpu->gpm.find(wanted->metrics[i].metricId);
    wanted->metrics[i].nvmlReturn =
        found == seen.gpu->gpm.end() ? NVML_ERROR_NOT_SUPPORTED : NVML_SUCCESS;
    if (found != seen.gpu->gpm.end()) wanted->metrics[i].value = found->second;
  }
  return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetPcieThroughput(nvmlDevice_t device, nvmlPcieUtilCounter_t counter,
                                         unsigned int* value) {
  const Look seen = look_at(device, "pcie");
  if (seen.result != NVML_SUCCESS) return seen.result;
  std::this_thread::sleep_for(std::chrono::milliseconds(seen.gpu->pcie_delay_ms));
  *value = counter == NVML_PCIE_UTIL_RX_BYTES ? seen.gpu->pcie_rx_kb : seen.gpu->pcie_tx_kb;
  return NVML_SUCCESS;
}

nvmlReturn_t nvmlEventSetCreate(nvmlEventSet_t* set) {
  if (initialised == 0) return NVML_ERROR_UNINITIALIZED;
  *set = new nvmlEventSet_st;
  return NVML_SUCCESS;
}

nvmlReturn_t nvmlEventSetFree(nvmlEventSet_t set) {
  delete set;
  return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceRegisterEvents(nvmlDevice_t device, unsigned long long types,
                                      nvmlEventSet_t set) {
  const nvmlReturn_t result = look_at(device, "events").result;
  if (result != NVML_SUCCESS) return result;
  if ((types & nvmlEventTypeXidCriticalError) == 0) return NVML_ERROR_NOT_SUPPORTED;
  const std::lock_guard lock(set->mutex);
  set->gpus.insert(device->index);
  return NVML_SUCCESS;
}

nvmlReturn_t nvmlEventSetWait_v2(nvmlEventSet_t set, nvmlEventData_t* data,
                                 unsigned int timeout_ms) {
  const auto until = std::chrono::steady_clock::now() + std::chrono::milliseconds(timeout_ms);
  while (true) {
    const auto now = fake_nvml::instructions_now();
    if (!now) return NVML_ERROR_UNKNOWN;
    {
      const std::scoped_lock lock(set->mutex, delivered_mutex);
      for (const fake_nvml::Xid& xid : now->xids) {
        if (set->gpus.count(xid.gpu) == 0 || !delivered.insert(xid.id).second) continue;
        *data = {};
        data->device = &devices[xid.gpu];
        data->eventType = nvmlEventTypeXidCriticalError;
        data->eventData = xid.xid;
        data->gpuInstanceId = data->computeInstanceId = 0xFFFFFFFF;
        return NVML_SUCCESS;
      }
    }
    if (std::chrono::steady_clock::now() >= until) return NVML_ERROR_TIMEOUT;
    std::this_thread::sleep_for(kLookForEvents);
  }
}

}  // extern "C"
