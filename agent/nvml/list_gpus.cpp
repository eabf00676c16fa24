// SPDX-License-Identifier: Apache-2.0
#include "agent/nvml/list_gpus.h"

#include <future>
#include <thread>

#include "agent/nvml/nvml_library.h"

namespace kdtree {
namespace {

GpuFacts facts_of(const NvmlLibrary& nvml, unsigned index) {
  GpuFacts gpu;
  gpu.index = static_cast<int>(index);
  nvmlDevice_t device = nullptr;
  if (const nvmlReturn_t result = nvml.device_by_index(index, &device); result != NVML_SUCCESS) {
    gpu.unreadable = nvml.text_of(result);
    return gpu;
  }
  char text[NVML_DEVICE_UUID_V2_BUFFER_SIZE] = "";
  if (nvml.name != nullptr && nvml.name(device, text, sizeof text) == NVML_SUCCESS) gpu.name = text;
  if (nvml.uuid != nullptr && nvml.uuid(device, text, sizeof text) == NVML_SUCCESS) gpu.uuid = text;
  int major = 0;
  int minor = 0;
  if (nvml.compute_capability != nullptr &&
      nvml.compute_capability(device, &major, &minor) == NVML_SUCCESS)
    gpu.arch = std::to_string(major) + std::to_string(minor);
  if (nvmlMemory_t memory{}; nvml.memory != nullptr && nvml.memory(device, &memory) == NVML_SUCCESS)
    gpu.free_bytes = memory.free;
  return gpu;
}

tl::expected<GpuList, NvmlError> ask(const std::string& nvml_path) {
  auto session = NvmlSession::begin(nvml_path);
  if (!session) return tl::make_unexpected(std::move(session).error());
  GpuList list;
  list.driver = (*session)->driver();
  for (unsigned i = 0; i < (*session)->gpus(); ++i)
    list.gpus.push_back(facts_of((*session)->nvml(), i));
  return list;
}

std::string hint_for(NvmlFailure failure) {
  switch (failure) {
    case NvmlFailure::library_missing:
      return "install the NVIDIA driver's libraries, or bind-mount them into this container";
    case NvmlFailure::driver_not_loaded:
      return "load the NVIDIA kernel module ('modprobe nvidia'), on the machine that owns the GPUs";
    case NvmlFailure::driver_mismatch:
      return "the driver was upgraded under the running kernel module: reboot, or unload and load "
             "the module";
    case NvmlFailure::no_permission:
      return "check who may open /dev/nvidia*";
    case NvmlFailure::no_gpu:
      return "check 'lspci' and the container's device list";
    default:
      return "see 'dmesg' for NVRM and Xid lines";
  }
}

}  // namespace

Result<GpuList> list_gpus(const std::string& nvml_path, std::chrono::milliseconds deadline) {
  auto answer = std::make_shared<std::promise<tl::expected<GpuList, NvmlError>>>();
  auto waiting = answer->get_future();
  std::thread([answer, nvml_path] { answer->set_value(ask(nvml_path)); }).detach();
  if (waiting.wait_for(deadline) != std::future_status::ready)
    return fail(ExitCode::refused, "NVML did not answer before the deadline",
                "a GPU or the driver hangs; see 'dmesg' for NVRM and Xid lines");
  auto list = waiting.get();
  if (!list)
    return fail(ExitCode::refused, "NVML: " + list.error().detail, hint_for(list.error().failure));
  return std::move(*list);
}

}  // namespace kdtree
