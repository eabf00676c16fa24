// SPDX-License-Identifier: Apache-2.0
#include "agent/metrics/collect.h"

namespace kdtree {
namespace {

template <typename Value>
void add_known(Exposition& out, Metric metric, const std::string& gpu,
               const std::optional<Value>& value) {
  if (value) out.add(metric, {gpu}, static_cast<double>(*value));
}

void add_gpu(Exposition& out, const GpuSnapshot& gpu, const std::string& driver) {
  const std::string index = std::to_string(gpu.index);
  if (!gpu.uuid.empty())
    out.add(Metric::gpu_info, {index, gpu.uuid, gpu.name, driver, gpu.pci_bus_id}, 1);
  if (gpu.condition) out.add(Metric::gpu_up, {index}, gpu.condition == GpuCondition::ok ? 1 : 0);
  if (gpu.condition && gpu.condition != GpuCondition::ok)
    out.add(Metric::gpu_failure_info, {index, std::string(gpu_condition_name(*gpu.condition))}, 1);
  if (gpu.sample_age) out.add(Metric::gpu_sample_age, {index}, gpu.sample_age->count());
  for (const auto& [xid, count] : gpu.xids) {
    out.add(Metric::gpu_xid_errors, {index, std::to_string(xid)},
            static_cast<double>(count.events));
    out.add(Metric::gpu_xid_last_timestamp, {index, std::to_string(xid)},
            std::chrono::duration<double>(count.last.time_since_epoch()).count());
  }
  if (!gpu.values) return;
  add_known(out, Metric::gpu_utilization, index, gpu.values->utilization);
  if (gpu.values->utilization) {
    out.add(Metric::gpu_busy_seconds, {index}, gpu.busy.count());
    out.add(Metric::gpu_observed_seconds, {index}, gpu.observed.count());
  }
  add_known(out, Metric::gpu_memory_used, index, gpu.values->memory_used_bytes);
  add_known(out, Metric::gpu_memory_total, index, gpu.values->memory_total_bytes);
  add_known(out, Metric::gpu_power, index, gpu.values->power_watts);
  add_known(out, Metric::gpu_temperature, index, gpu.values->temperature_celsius);
  add_known(out, Metric::gpu_pcie_receive, index, gpu.values->pcie_receive_bytes_per_second);
  add_known(out, Metric::gpu_pcie_transmit, index, gpu.values->pcie_transmit_bytes_per_second);
}

}  // namespace

void add_gpu_metrics(Exposition& out, const NvmlSnapshot& nvml, const Config* config) {
  out.add(Metric::nvml_up, nvml.failure ? 0 : 1);
  if (nvml.failure)
    out.add(Metric::nvml_failure_info, {std::string(nvml_failure_name(nvml.failure->failure))}, 1);
  else
    out.add(Metric::gpus_visible, nvml.visible);
  out.add(Metric::nvml_events_up, nvml.events ? 1 : 0);
  if (config != nullptr && config->kernel.device == KernelDevice::cuda)
    out.add(Metric::gpus_expected, config->engine.ranks);
  for (const GpuSnapshot& gpu : nvml.gpus) add_gpu(out, gpu, nvml.driver);
}

}  // namespace kdtree
