// SPDX-License-Identifier: Apache-2.0
#pragma once

#define NVML_NO_UNVERSIONED_FUNC_DEFS
#include <nvml.h>

#include <memory>
#include <string>

#include "agent/nvml/nvml_failure.h"
#include "agent/util/result.h"

// NVIDIA's management library, opened at run time so that kdtree runs (and says so) where there is
// none. Only agent/nvml includes this file: nvml.h stays in this folder.
namespace kdtree {

// The functions that kdtree calls. `required` ones are never null; any other is null where the
// library is too old.
struct NvmlLibrary {
  // required
  decltype(&::nvmlInit_v2) init = nullptr;
  decltype(&::nvmlShutdown) shutdown = nullptr;
  decltype(&::nvmlDeviceGetCount_v2) device_count = nullptr;
  decltype(&::nvmlDeviceGetHandleByIndex_v2) device_by_index = nullptr;
  // optional
  decltype(&::nvmlErrorString) error_string = nullptr;
  decltype(&::nvmlSystemGetDriverVersion) driver_version = nullptr;
  decltype(&::nvmlDeviceGetName) name = nullptr;
  decltype(&::nvmlDeviceGetUUID) uuid = nullptr;
  decltype(&::nvmlDeviceGetPciInfo_v3) pci_info = nullptr;
  decltype(&::nvmlDeviceGetCudaComputeCapability) compute_capability = nullptr;
  decltype(&::nvmlDeviceGetUtilizationRates) utilization = nullptr;
  decltype(&::nvmlDeviceGetMemoryInfo_v2) memory_v2 = nullptr;
  decltype(&::nvmlDeviceGetMemoryInfo) memory = nullptr;
  decltype(&::nvmlDeviceGetPowerUsage) power = nullptr;
  decltype(&::nvmlDeviceGetTemperatureV) temperature_v = nullptr;
  nvmlReturn_t (*temperature)(nvmlDevice_t, nvmlTemperatureSensors_t, unsigned int*) = nullptr;
  decltype(&::nvmlDeviceGetPcieThroughput) pcie_throughput = nullptr;
  decltype(&::nvmlDeviceGetSamples) samples = nullptr;
  decltype(&::nvmlDeviceGetTotalEnergyConsumption) energy = nullptr;
  decltype(&::nvmlDeviceGetEnforcedPowerLimit) power_limit = nullptr;
  decltype(&::nvmlDeviceGetClockInfo) clock = nullptr;
  decltype(&::nvmlDeviceGetMaxClockInfo) max_clock = nullptr;
  // nvmlDeviceGetCurrentClocksEventReasons, or its older name ...ThrottleReasons.
  decltype(&::nvmlDeviceGetCurrentClocksEventReasons) clock_events = nullptr;
  decltype(&::nvmlDeviceGetTotalEccErrors) ecc_errors = nullptr;
  decltype(&::nvmlDeviceGetComputeRunningProcesses_v3) compute_processes = nullptr;
  decltype(&::nvmlGpmQueryDeviceSupport) gpm_support = nullptr;
  decltype(&::nvmlGpmSampleAlloc) gpm_sample_alloc = nullptr;
  decltype(&::nvmlGpmSampleFree) gpm_sample_free = nullptr;
  decltype(&::nvmlGpmSampleGet) gpm_sample_get = nullptr;
  decltype(&::nvmlGpmMetricsGet) gpm_metrics_get = nullptr;
  decltype(&::nvmlEventSetCreate) event_set_create = nullptr;
  decltype(&::nvmlEventSetFree) event_set_free = nullptr;
  decltype(&::nvmlDeviceRegisterEvents) register_events = nullptr;
  decltype(&::nvmlEventSetWait_v2) event_set_wait = nullptr;

  // Opens `path` ("" = libnvidia-ml.so.1 as the loader finds it). The library is closed with the
  // last owner. Errors: NvmlError with library_missing or library_unfit.
  static tl::expected<std::shared_ptr<const NvmlLibrary>, NvmlError> open(const std::string& path);

  NvmlLibrary() = default;
  NvmlLibrary(const NvmlLibrary&) = delete;
  NvmlLibrary& operator=(const NvmlLibrary&) = delete;
  ~NvmlLibrary();

  std::string text_of(nvmlReturn_t result) const;

 private:
  void* handle_ = nullptr;
};

// One nvmlInit, undone with the last owner. A thread inside a call owns it, so that the library
// outlives the call.
class NvmlSession {
 public:
  static tl::expected<std::shared_ptr<const NvmlSession>, NvmlError> begin(const std::string& path);
  ~NvmlSession();
  NvmlSession(const NvmlSession&) = delete;
  NvmlSession& operator=(const NvmlSession&) = delete;

  const NvmlLibrary& nvml() const { return *library_; }
  unsigned gpus() const { return gpus_; }  // as listed when the session began, at least 1
  const std::string& driver() const { return driver_; }  // "" = unknown

 private:
  NvmlSession(std::shared_ptr<const NvmlLibrary> library, unsigned gpus, std::string driver);
  std::shared_ptr<const NvmlLibrary> library_;
  unsigned gpus_;
  std::string driver_;
};

NvmlFailure nvml_failure_of(nvmlReturn_t result);

}  // namespace kdtree
