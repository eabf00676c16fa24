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

#include "tests/fake_nvml/instructions.h"

using fake_nvml::Fail;

struct nvmlDevice_st {
  int index;
};

struct nvmlEventSet_st {
  std::mutex mutex;
  std::set<int> gpus;
};

namespace {

constexpr unsigned long long kTotalBytes = 96ull << 30;
constexpr auto kLook = std::chrono::milliseconds(10);

std::atomic<int> initialised{0};
std::mutex delivered_mutex;
std::set<std::uint64_t>& delivered =
    *new std::set<std::uint64_t>;  // outlives threads that still call at exit
nvmlDevice_st devices[fake_nvml::kMaxGpus] = {{0}, {1}, {2},  {3},  {4},  {5},  {6},  {7},
                                              {8}, {9}, {10}, {11}, {12}, {13}, {14}, {15}};

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

// What calls on `device` do now: a failure, or success and `gpu`. Doesn't return while the GPU
// hangs.
nvmlReturn_t look_at(nvmlDevice_t device, fake_nvml::Gpu& gpu) {
  if (initialised == 0) return NVML_ERROR_UNINITIALIZED;
  if (device == nullptr) return NVML_ERROR_INVALID_ARGUMENT;
  while (true) {
    const auto now = fake_nvml::instructions_now();
    if (!now) return NVML_ERROR_UNKNOWN;
    if (device->index >= now->count) return NVML_ERROR_GPU_IS_LOST;
    gpu = now->gpus[static_cast<std::size_t>(device->index)];
    if (gpu.fail != Fail::hung) return code_of(gpu.fail);
    std::this_thread::sleep_for(kLook);
  }
}

nvmlReturn_t look_at(nvmlDevice_t device, const char* what, fake_nvml::Gpu& gpu) {
  const nvmlReturn_t result = look_at(device, gpu);
  if (result != NVML_SUCCESS) return result;
  return gpu.not_supported.count(what) > 0 ? NVML_ERROR_NOT_SUPPORTED : NVML_SUCCESS;
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
    if (now->init == Fail::none) ++initialised;
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
  if (!now) return NVML_ERROR_UNKNOWN;
  *count = static_cast<unsigned>(now->count);
  return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetHandleByIndex_v2(unsigned int index, nvmlDevice_t* device) {
  if (index >= fake_nvml::kMaxGpus) return NVML_ERROR_INVALID_ARGUMENT;
  fake_nvml::Gpu gpu;
  const nvmlReturn_t result = look_at(&devices[index], gpu);
  if (result == NVML_SUCCESS) *device = &devices[index];
  return result;
}

nvmlReturn_t nvmlDeviceGetName(nvmlDevice_t device, char* name, unsigned int length) {
  fake_nvml::Gpu gpu;
  const nvmlReturn_t result = look_at(device, gpu);
  return result == NVML_SUCCESS ? put_text("NVIDIA RTX PRO 6000 Blackwell", name, length) : result;
}

nvmlReturn_t nvmlDeviceGetUUID(nvmlDevice_t device, char* uuid, unsigned int length) {
  fake_nvml::Gpu gpu;
  const nvmlReturn_t result = look_at(device, gpu);
  if (result != NVML_SUCCESS) return result;
  char text[48];
  std::snprintf(text, sizeof text, "GPU-fa4e0000-0000-0000-0000-%012d", device->index);
  return put_text(text, uuid, length);
}

nvmlReturn_t nvmlDeviceGetPciInfo_v3(nvmlDevice_t device, nvmlPciInfo_t* pci) {
  fake_nvml::Gpu gpu;
  const nvmlReturn_t result = look_at(device, gpu);
  if (result != NVML_SUCCESS) return result;
  *pci = {};
  pci->bus = static_cast<unsigned>(0x10 * (device->index + 1));
  std::snprintf(pci->busId, sizeof pci->busId, "00000000:%02X:00.0", pci->bus & 0xff);
  std::snprintf(pci->busIdLegacy, sizeof pci->busIdLegacy, "0000:%02X:00.0", pci->bus & 0xff);
  return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetCudaComputeCapability(nvmlDevice_t device, int* major, int* minor) {
  fake_nvml::Gpu gpu;
  const nvmlReturn_t result = look_at(device, gpu);
  if (result != NVML_SUCCESS) return result;
  *major = 12;
  *minor = 0;
  return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetUtilizationRates(nvmlDevice_t device, nvmlUtilization_t* utilization) {
  fake_nvml::Gpu gpu;
  const nvmlReturn_t result = look_at(device, "utilization", gpu);
  if (result == NVML_SUCCESS) *utilization = {gpu.utilization, gpu.utilization / 2};
  return result;
}

nvmlReturn_t nvmlDeviceGetMemoryInfo(nvmlDevice_t device, nvmlMemory_t* memory) {
  fake_nvml::Gpu gpu;
  const nvmlReturn_t result = look_at(device, "memory", gpu);
  if (result == NVML_SUCCESS) {
    memory->total = kTotalBytes;
    memory->used = gpu.memory_used;
    memory->free = kTotalBytes - gpu.memory_used;
  }
  return result;
}

nvmlReturn_t nvmlDeviceGetMemoryInfo_v2(nvmlDevice_t device, nvmlMemory_v2_t* memory) {
  if (memory->version != nvmlMemory_v2) return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
  fake_nvml::Gpu gpu;
  const nvmlReturn_t result = look_at(device, "memory", gpu);
  if (result == NVML_SUCCESS) {
    memory->total = kTotalBytes;
    memory->reserved = 512u << 20;
    memory->used = gpu.memory_used;
    memory->free = kTotalBytes - gpu.memory_used;
  }
  return result;
}

nvmlReturn_t nvmlDeviceGetPowerUsage(nvmlDevice_t device, unsigned int* milliwatts) {
  fake_nvml::Gpu gpu;
  const nvmlReturn_t result = look_at(device, "power", gpu);
  if (result == NVML_SUCCESS) *milliwatts = gpu.power_mw;
  return result;
}

nvmlReturn_t nvmlDeviceGetTemperature(nvmlDevice_t device, nvmlTemperatureSensors_t,
                                      unsigned int* celsius) {
  fake_nvml::Gpu gpu;
  const nvmlReturn_t result = look_at(device, "temperature", gpu);
  if (result == NVML_SUCCESS) *celsius = gpu.temperature;
  return result;
}

nvmlReturn_t nvmlDeviceGetTemperatureV(nvmlDevice_t device, nvmlTemperature_t* temperature) {
  if (temperature->version != nvmlTemperature_v1) return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
  fake_nvml::Gpu gpu;
  const nvmlReturn_t result = look_at(device, "temperature", gpu);
  if (result == NVML_SUCCESS) temperature->temperature = static_cast<int>(gpu.temperature);
  return result;
}

nvmlReturn_t nvmlDeviceGetPcieThroughput(nvmlDevice_t device, nvmlPcieUtilCounter_t counter,
                                         unsigned int* value) {
  fake_nvml::Gpu gpu;
  const nvmlReturn_t result = look_at(device, "pcie", gpu);
  if (result != NVML_SUCCESS) return result;
  std::this_thread::sleep_for(std::chrono::milliseconds(gpu.pcie_delay_ms));
  *value = counter == NVML_PCIE_UTIL_RX_BYTES ? gpu.pcie_rx_kb : gpu.pcie_tx_kb;
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
  fake_nvml::Gpu gpu;
  const nvmlReturn_t result = look_at(device, "events", gpu);
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
    std::this_thread::sleep_for(kLook);
  }
}

}  // extern "C"
