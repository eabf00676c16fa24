// SPDX-License-Identifier: Apache-2.0
#include "agent/nvml/nvml_library.h"

#include <dlfcn.h>

namespace kdtree {
namespace {

using Failed = tl::unexpected<NvmlError>;

template <typename Function>
bool find(void* handle, const char* name, Function& function) {
  function = reinterpret_cast<Function>(::dlsym(handle, name));
  return function != nullptr;
}

}  // namespace

std::string_view nvml_failure_name(NvmlFailure failure) {
  switch (failure) {
    case NvmlFailure::starting:
      return "starting";
    case NvmlFailure::library_missing:
      return "library_missing";
    case NvmlFailure::library_unfit:
      return "library_unfit";
    case NvmlFailure::driver_not_loaded:
      return "driver_not_loaded";
    case NvmlFailure::driver_mismatch:
      return "driver_mismatch";
    case NvmlFailure::no_permission:
      return "no_permission";
    case NvmlFailure::no_gpu:
      return "no_gpu";
    case NvmlFailure::hung:
      return "hung";
    case NvmlFailure::error:
      return "error";
  }
  return "error";
}

NvmlFailure nvml_failure_of(nvmlReturn_t result) {
  switch (result) {
    case NVML_ERROR_DRIVER_NOT_LOADED:
      return NvmlFailure::driver_not_loaded;
    case NVML_ERROR_LIB_RM_VERSION_MISMATCH:
      return NvmlFailure::driver_mismatch;
    case NVML_ERROR_NO_PERMISSION:
      return NvmlFailure::no_permission;
    case NVML_ERROR_GPU_NOT_FOUND:
      return NvmlFailure::no_gpu;
    default:
      return NvmlFailure::error;
  }
}

tl::expected<std::shared_ptr<const NvmlLibrary>, NvmlError> NvmlLibrary::open(
    const std::string& path) {
  auto library = std::make_shared<NvmlLibrary>();
  const char* name = path.empty() ? "libnvidia-ml.so.1" : path.c_str();
  library->handle_ = ::dlopen(name, RTLD_NOW | RTLD_LOCAL);
  if (library->handle_ == nullptr) {
    const char* why = ::dlerror();
    return Failed({NvmlFailure::library_missing, why != nullptr ? why : name});
  }
  NvmlLibrary& to = *library;
  void* from = library->handle_;
  if (!find(from, "nvmlInit_v2", to.init) || !find(from, "nvmlShutdown", to.shutdown) ||
      !find(from, "nvmlDeviceGetCount_v2", to.device_count) ||
      !find(from, "nvmlDeviceGetHandleByIndex_v2", to.device_by_index))
    return Failed(
        {NvmlFailure::library_unfit, std::string(name) + " lacks nvmlInit_v2 or its kin"});
  find(from, "nvmlErrorString", to.error_string);
  find(from, "nvmlSystemGetDriverVersion", to.driver_version);
  find(from, "nvmlDeviceGetName", to.name);
  find(from, "nvmlDeviceGetUUID", to.uuid);
  find(from, "nvmlDeviceGetPciInfo_v3", to.pci_info);
  find(from, "nvmlDeviceGetCudaComputeCapability", to.compute_capability);
  find(from, "nvmlDeviceGetUtilizationRates", to.utilization);
  find(from, "nvmlDeviceGetMemoryInfo_v2", to.memory_v2);
  find(from, "nvmlDeviceGetMemoryInfo", to.memory);
  find(from, "nvmlDeviceGetPowerUsage", to.power);
  find(from, "nvmlDeviceGetTemperatureV", to.temperature_v);
  find(from, "nvmlDeviceGetTemperature", to.temperature);
  find(from, "nvmlDeviceGetPcieThroughput", to.pcie_throughput);
  find(from, "nvmlDeviceGetSamples", to.samples);
  find(from, "nvmlDeviceGetTotalEnergyConsumption", to.energy);
  find(from, "nvmlDeviceGetEnforcedPowerLimit", to.power_limit);
  find(from, "nvmlDeviceGetClockInfo", to.clock);
  find(from, "nvmlDeviceGetMaxClockInfo", to.max_clock);
  if (!find(from, "nvmlDeviceGetCurrentClocksEventReasons", to.clock_events))
    find(from, "nvmlDeviceGetCurrentClocksThrottleReasons", to.clock_events);
  find(from, "nvmlDeviceGetTotalEccErrors", to.ecc_errors);
  find(from, "nvmlDeviceGetComputeRunningProcesses_v3", to.compute_processes);
  find(from, "nvmlGpmQueryDeviceSupport", to.gpm_support);
  find(from, "nvmlGpmSampleAlloc", to.gpm_sample_alloc);
  find(from, "nvmlGpmSampleFree", to.gpm_sample_free);
  find(from, "nvmlGpmSampleGet", to.gpm_sample_get);
  find(from, "nvmlGpmMetricsGet", to.gpm_metrics_get);
  find(from, "nvmlEventSetCreate", to.event_set_create);
  find(from, "nvmlEventSetFree", to.event_set_free);
  find(from, "nvmlDeviceRegisterEvents", to.register_events);
  find(from, "nvmlEventSetWait_v2", to.event_set_wait);
  return library;
}

NvmlLibrary::~NvmlLibrary() {
  if (handle_ != nullptr) ::dlclose(handle_);
}

std::string NvmlLibrary::text_of(nvmlReturn_t result) const {
  const char* text = error_string != nullptr ? error_string(result) : nullptr;
  return text != nullptr ? text : "NVML error " + std::to_string(static_cast<int>(result));
}

NvmlSession::NvmlSession(std::shared_ptr<const NvmlLibrary> library, unsigned gpus,
                         std::string driver)
    : library_(std::move(library)), gpus_(gpus), driver_(std::move(driver)) {}

NvmlSession::~NvmlSession() { library_->shutdown(); }

tl::expected<std::shared_ptr<const NvmlSession>, NvmlError> NvmlSession::begin(
    const std::string& path) {
  auto library = NvmlLibrary::open(path);
  if (!library) return Failed(std::move(library).error());
  const NvmlLibrary& nvml = **library;

  if (const nvmlReturn_t result = nvml.init(); result != NVML_SUCCESS)
    return Failed({nvml_failure_of(result), "nvmlInit: " + nvml.text_of(result)});
  char driver[NVML_SYSTEM_DRIVER_VERSION_BUFFER_SIZE] = "";
  if (nvml.driver_version != nullptr) nvml.driver_version(driver, sizeof driver);
  unsigned gpus = 0;
  const nvmlReturn_t counted = nvml.device_count(&gpus);
  // From here on the session's end undoes the init.
  std::shared_ptr<const NvmlSession> session(new NvmlSession(*library, gpus, driver));
  if (counted != NVML_SUCCESS)
    return Failed({nvml_failure_of(counted), "nvmlDeviceGetCount: " + nvml.text_of(counted)});
  if (gpus == 0) return Failed({NvmlFailure::no_gpu, "NVML works and lists no GPU"});
  return session;
}

}  // namespace kdtree
