// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "agent/metrics/collect.h"

namespace kdtree {
namespace {

constexpr std::size_t kMostProcesses = 16;  // series a GPU

using Seconds = std::chrono::duration<double>;

// The series of one GPU, each with its index and uuid.
class GpuSeries {
 public:
  GpuSeries(Exposition& out, const GpuSnapshot& gpu)
      : out_(out), gpu_(gpu), index_(std::to_string(gpu.index)) {}

  void add_state(const std::string& driver) {
    if (!gpu_.uuid.empty()) add(Metric::gpu_info, 1, gpu_.name, driver, gpu_.pci_bus_id);
    const bool up = gpu_.condition == GpuCondition::ok;
    if (gpu_.condition) add(Metric::gpu_up, up ? 1 : 0);
    if (gpu_.condition && !up)
      add(Metric::gpu_failure_info, 1, std::string(gpu_condition_name(*gpu_.condition)));
    if (gpu_.sample_age) add(Metric::gpu_sample_age, gpu_.sample_age->count());
    if (gpu_.sample_took) add(Metric::gpu_sample_duration, gpu_.sample_took->count());
    for (const auto& [xid, count] : gpu_.xids) {
      add(Metric::gpu_xid_errors, static_cast<double>(count.events), std::to_string(xid));
      add(Metric::gpu_xid_last_timestamp, Seconds(count.last.time_since_epoch()).count(),
          std::to_string(xid));
    }
  }

  void add_values(const GpuValues& values) {
    add_known(Metric::gpu_utilization, values.utilization);
    add_known(Metric::gpu_utilization_max, values.utilization_max);
    if (values.utilization) {
      add(Metric::gpu_busy_seconds, gpu_.busy.count());
      add(Metric::gpu_observed_seconds, gpu_.observed.count());
      out_.add_histogram(Metric::gpu_utilization_distribution, {index_, gpu_.uuid},
                         UtilizationSpread::kBounds, gpu_.spread.counts, gpu_.spread.sum);
    }
    add_known(Metric::gpu_sm_active, values.gpm.sm_active);
    add_known(Metric::gpu_sm_occupancy, values.gpm.sm_occupancy);
    add_known(Metric::gpu_tensor_active, values.gpm.tensor_active);
    add_known(Metric::gpu_dram_active, values.gpm.dram_active);
    add_known(Metric::gpu_memory_used, values.memory_used_bytes);
    add_known(Metric::gpu_memory_total, values.memory_total_bytes);
    add_known(Metric::gpu_power, values.power_watts);
    add_known(Metric::gpu_energy, values.energy_joules);
    add_known(Metric::gpu_temperature, values.temperature_celsius);
    add_known(Metric::gpu_clock, values.sm_clock_hertz, "sm");
    add_known(Metric::gpu_clock, values.memory_clock_hertz, "memory");
    if (values.clock_events) add_clock_events(*values.clock_events);
  }

  void add_slow(const GpuSlowValues& slow) {
    add_known(Metric::gpu_power_limit, slow.power_limit_watts);
    add_known(Metric::gpu_clock_max, slow.sm_clock_max_hertz, "sm");
    add_known(Metric::gpu_clock_max, slow.memory_clock_max_hertz, "memory");
    add_known(Metric::gpu_ecc_errors, slow.ecc_corrected, "corrected");
    add_known(Metric::gpu_ecc_errors, slow.ecc_uncorrected, "uncorrected");
    if (!slow.processes) return;
    add(Metric::gpu_processes, static_cast<double>(slow.processes->size()));
    for (std::size_t i = 0; i < std::min(slow.processes->size(), kMostProcesses); ++i)
      add_known(Metric::gpu_process_memory, (*slow.processes)[i].memory_bytes,
                std::to_string((*slow.processes)[i].pid));
  }

  // GPM's, else what the slow counters said.
  void add_pcie(const std::optional<GpuValues>& values, const std::optional<GpuSlowValues>& slow) {
    const auto pick = [&](auto gpm, auto counter) {
      std::optional<double> known = values ? values->gpm.*gpm : std::nullopt;
      return known || !slow ? known : (*slow).*counter;
    };
    add_known(Metric::gpu_pcie_receive, pick(&GpmValues::pcie_receive_bytes_per_second,
                                             &GpuSlowValues::pcie_receive_bytes_per_second));
    add_known(Metric::gpu_pcie_transmit, pick(&GpmValues::pcie_transmit_bytes_per_second,
                                              &GpuSlowValues::pcie_transmit_bytes_per_second));
  }

 private:
  template <typename... Labels>
  void add(Metric metric, double value, const Labels&... more) {
    out_.add(metric, {index_, gpu_.uuid, more...}, value);
  }

  template <typename Value, typename... Labels>
  void add_known(Metric metric, const std::optional<Value>& value, const Labels&... more) {
    if (value) add(metric, static_cast<double>(*value), more...);
  }

  void add_clock_events(const ClockEvents& events) {
    for (std::size_t i = 0; i < events.size(); ++i) {
      const std::string reason(kClockEvents[i]);
      add(Metric::gpu_clock_event, events[i] ? 1 : 0, reason);
      add(Metric::gpu_clock_event_seconds, gpu_.clock_event_time[i].count(), reason);
    }
  }

  Exposition& out_;
  const GpuSnapshot& gpu_;
  const std::string index_;
};

// Of the oldest and slowest GPU.
void add_collectors(Exposition& out, const NvmlSnapshot& nvml) {
  std::optional<Seconds> age;
  std::optional<Seconds> took;
  std::optional<Seconds> pcie_age;
  std::optional<Seconds> pcie_took;
  const auto raise = [](std::optional<Seconds>& highest, const std::optional<Seconds>& value) {
    if (value) highest = std::max(highest.value_or(Seconds(0)), *value);
  };
  for (const GpuSnapshot& gpu : nvml.gpus) {
    raise(age, gpu.sample_age);
    raise(took, gpu.sample_took);
    if (!gpu.slow || !gpu.slow->pcie_took) continue;
    raise(pcie_age, gpu.slow_age);
    raise(pcie_took, gpu.slow->pcie_took);
  }
  if (age) out.add(Metric::collector_age, {"gpus"}, age->count());
  if (took) out.add(Metric::collector_duration, {"gpus"}, took->count());
  if (pcie_age) out.add(Metric::collector_age, {"pcie"}, pcie_age->count());
  if (pcie_took) out.add(Metric::collector_duration, {"pcie"}, pcie_took->count());
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
  for (const GpuSnapshot& gpu : nvml.gpus) {
    GpuSeries series(out, gpu);
    series.add_state(nvml.driver);
    if (gpu.values) series.add_values(*gpu.values);
    if (gpu.slow) series.add_slow(*gpu.slow);
    series.add_pcie(gpu.values, gpu.slow);
  }
  add_collectors(out, nvml);
}

}  // namespace kdtree
