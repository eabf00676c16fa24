// SPDX-License-Identifier: Apache-2.0
#include "agent/metrics/catalog_parts.h"

namespace kdtree {
namespace {

using enum MetricType;

constexpr LabelNames<2> kGpu{"gpu", "uuid"};
constexpr LabelNames<5> kInfo{"gpu", "uuid", "name", "driver", "pci_bus_id"};
constexpr LabelNames<3> kReason{"gpu", "uuid", "reason"};
constexpr LabelNames<3> kClock{"gpu", "uuid", "clock"};
constexpr LabelNames<3> kEccKind{"gpu", "uuid", "kind"};
constexpr LabelNames<3> kPid{"gpu", "uuid", "pid"};
constexpr LabelNames<3> kXid{"gpu", "uuid", "xid"};
constexpr LabelNames<1> kFailure{"reason"};

constexpr std::string_view kDown =
    "the GPU is lost, hangs or answers with an error; it can't tell; the last good sample is older "
    "than 10 s";
constexpr std::string_view kNoGpm =
    "as the others of a GPU; or no GPM: it begins with Hopper, and needs driver and permission";
constexpr std::string_view kSlowDown =
    "as the others of a GPU; it is read every 10 s and shown for 20 s";
constexpr std::string_view kCall = "one NVML call a GPU and second";
constexpr std::string_view kSlowCall = "one NVML call a GPU every 10 s";
constexpr std::string_view kGpmCost = "two NVML calls a GPU and second, for all of GPM";
constexpr std::string_view kPcieCost =
    "with GPM none of its own; else one NVML call a GPU every 10 s that takes 21 ms on an H200 "
    "(kdtree_collector_duration_seconds, collector pcie)";

constexpr MetricSpec kCatalog[] = {
    {Metric::gpu_info, "kdtree_gpu_info", gauge, "1", kInfo,
     "Which GPU a uuid is; the value is 1. gpu is NVML's index, which can change when a GPU is "
     "lost; "
     "uuid stays.",
     "NVML never named this GPU", kNoCost,
     "kdtree_gpu_power_watts * on (job, instance, uuid) group_left (name, pci_bus_id) "
     "kdtree_gpu_info"},
    {Metric::gpu_up, "kdtree_gpu_up", gauge, "1", kGpu,
     "1 while the GPU answers NVML in time, 0 once it is lost, hangs or fails; for each GPU seen "
     "since the agent began.",
     "no GPU was seen yet", kNoCost, "kdtree_gpu_up == 0"},
    {Metric::gpu_failure_info, "kdtree_gpu_failure_info", gauge, "1", kReason,
     "Why kdtree_gpu_up is 0: lost, hung, reset_required, no_permission, error; the value is 1.",
     "the GPU is up", kNoCost, "kdtree_gpu_failure_info"},
    {Metric::gpu_sample_age, "kdtree_gpu_sample_age_seconds", gauge, "seconds", kGpu,
     "Time since the GPU last answered all that is asked each second.", "it never answered",
     kNoCost, "max by (job, instance) (kdtree_gpu_sample_age_seconds)"},
    {Metric::gpu_sample_duration, "kdtree_gpu_sample_duration_seconds", gauge, "seconds", kGpu,
     "How long all calls of the last good sample took; the slow ones (every 10 s) are not in it.",
     "it never answered", kNoCost, "max by (job, instance) (kdtree_gpu_sample_duration_seconds)"},
    {Metric::gpu_utilization, "kdtree_gpu_utilization_ratio", gauge, "ratio", kGpu,
     "Part of the last second in which a kernel ran: the mean of NVML's own samples of it. It says "
     "that a kernel ran, not that it did much.",
     kDown, kCall, "kdtree_gpu_utilization_ratio"},
    {Metric::gpu_utilization_max, "kdtree_gpu_utilization_max_ratio", gauge, "ratio", kGpu,
     "The highest of NVML's utilisation samples of the last 15 s: a burst between two scrapes "
     "shows.",
     kDown, kNoCost, "kdtree_gpu_utilization_max_ratio - kdtree_gpu_utilization_ratio"},
    {Metric::gpu_utilization_distribution, "kdtree_gpu_utilization_distribution_ratio", histogram,
     "ratio", kGpu,
     "Every utilisation sample that NVML took since the agent first saw the GPU, in buckets.",
     kDown, kNoCost,
     "histogram_quantile(0.5, sum by (job, instance, gpu, uuid, le) "
     "(rate(kdtree_gpu_utilization_distribution_ratio_bucket[5m])))"},
    {Metric::gpu_busy_seconds, "kdtree_gpu_busy_seconds_total", counter, "seconds", kGpu,
     "Utilisation summed over the time for which it is known, sample by sample.", kDown, kNoCost,
     "rate(kdtree_gpu_busy_seconds_total[5m]) / rate(kdtree_gpu_observed_seconds_total[5m])"},
    {Metric::gpu_observed_seconds, "kdtree_gpu_observed_seconds_total", counter, "seconds", kGpu,
     "Time for which utilisation is known; gaps in the sampling are left out.", kDown, kNoCost,
     "rate(kdtree_gpu_observed_seconds_total[5m])"},
    {Metric::gpu_sm_active, "kdtree_gpu_sm_active_ratio", gauge, "ratio", kGpu,
     "GPM: part of the SMs that were busy over the last second, whole GPU.", kNoGpm, kGpmCost,
     "kdtree_gpu_utilization_ratio - kdtree_gpu_sm_active_ratio"},
    {Metric::gpu_sm_occupancy, "kdtree_gpu_sm_occupancy_ratio", gauge, "ratio", kGpu,
     "GPM: active warps over the most that fit, last second.", kNoGpm, kGpmCost,
     "kdtree_gpu_sm_occupancy_ratio"},
    {Metric::gpu_tensor_active, "kdtree_gpu_tensor_active_ratio", gauge, "ratio", kGpu,
     "GPM: part of the last second in which SMs did tensor operations of any kind. Near 0 beside a "
     "high utilisation is the sign of a serial kernel.",
     kNoGpm, kGpmCost,
     "kdtree_gpu_tensor_active_ratio < 0.02 and kdtree_gpu_utilization_ratio > 0.95"},
    {Metric::gpu_dram_active, "kdtree_gpu_dram_active_ratio", gauge, "ratio", kGpu,
     "GPM: device memory bandwidth used over the most there is, last second.", kNoGpm, kGpmCost,
     "kdtree_gpu_dram_active_ratio"},
    {Metric::gpu_memory_used, "kdtree_gpu_memory_used_bytes", gauge, "bytes", kGpu,
     "Device memory in use.", kDown, kCall,
     "kdtree_gpu_memory_used_bytes / kdtree_gpu_memory_total_bytes"},
    {Metric::gpu_memory_total, "kdtree_gpu_memory_total_bytes", gauge, "bytes", kGpu,
     "Device memory there is.", kDown, kNoCost, "kdtree_gpu_memory_total_bytes"},
    {Metric::gpu_power, "kdtree_gpu_power_watts", gauge, "watts", kGpu, "Power drawn by the board.",
     kDown, kCall, "sum by (job, instance) (kdtree_gpu_power_watts)"},
    {Metric::gpu_power_limit, "kdtree_gpu_power_limit_watts", gauge, "watts", kGpu,
     "The power limit in force.", kSlowDown, kSlowCall,
     "kdtree_gpu_power_watts / kdtree_gpu_power_limit_watts"},
    {Metric::gpu_energy, "kdtree_gpu_energy_joules_total", counter, "joules", kGpu,
     "Energy used since the driver was loaded, by the board's own counter: no peak is missed.",
     kDown, kCall, "rate(kdtree_gpu_energy_joules_total[5m])"},
    {Metric::gpu_temperature, "kdtree_gpu_temperature_celsius", gauge, "celsius", kGpu,
     "Temperature of the GPU core.", kDown, kCall,
     "max by (job, instance) (kdtree_gpu_temperature_celsius)"},
    {Metric::gpu_clock, "kdtree_gpu_clock_hertz", gauge, "hertz", kClock,
     "Present clock: sm, memory.", kDown, kCall,
     "kdtree_gpu_clock_hertz / kdtree_gpu_clock_max_hertz"},
    {Metric::gpu_clock_max, "kdtree_gpu_clock_max_hertz", gauge, "hertz", kClock,
     "The highest that this clock can be: sm, memory.", kSlowDown, kSlowCall,
     "kdtree_gpu_clock_max_hertz"},
    {Metric::gpu_clock_event, "kdtree_gpu_clock_event", gauge, "1", kReason,
     "1 while clocks are held down for this reason, as of the last sample: idle, "
     "application_clocks, software_power_cap, hardware_slowdown, sync_boost, software_thermal, "
     "hardware_thermal, hardware_power_brake, display, board_limit, reliability.",
     kDown, kCall, "kdtree_gpu_clock_event{reason!=\"idle\"} == 1"},
    {Metric::gpu_clock_event_seconds, "kdtree_gpu_clock_event_seconds_total", counter, "seconds",
     kReason, "Time for which clocks were held down for this reason, by one sample a second.",
     kDown, kNoCost, "rate(kdtree_gpu_clock_event_seconds_total{reason!=\"idle\"}[5m]) > 0.1"},
    {Metric::gpu_pcie_receive, "kdtree_gpu_pcie_receive_bytes_per_second", gauge,
     "bytes_per_second", kGpu,
     "PCIe traffic into the GPU: over the last second by GPM, else over NVML's 20 ms (its KB/s "
     "times 1000).",
     kSlowDown, kPcieCost, "sum by (job, instance) (kdtree_gpu_pcie_receive_bytes_per_second)"},
    {Metric::gpu_pcie_transmit, "kdtree_gpu_pcie_transmit_bytes_per_second", gauge,
     "bytes_per_second", kGpu, "PCIe traffic out of the GPU, likewise.", kSlowDown, kPcieCost,
     "sum by (job, instance) (kdtree_gpu_pcie_transmit_bytes_per_second)"},
    {Metric::gpu_ecc_errors, "kdtree_gpu_ecc_errors_total", counter, "1", kEccKind,
     "Memory errors since the driver was loaded: corrected, uncorrected.", kSlowDown, kSlowCall,
     "increase(kdtree_gpu_ecc_errors_total{kind=\"uncorrected\"}[1h]) > 0"},
    {Metric::gpu_processes, "kdtree_gpu_processes", gauge, "1", kGpu,
     "Processes with a compute context on the GPU.", kSlowDown, kSlowCall,
     "kdtree_gpu_processes > 1"},
    {Metric::gpu_process_memory, "kdtree_gpu_process_memory_bytes", gauge, "bytes", kPid,
     "Device memory of a compute process, by the pid that the driver knows (the host's, also in a "
     "container); the 16 largest.",
     "as kdtree_gpu_processes; or the driver can't tell", kNoCost,
     "topk(3, kdtree_gpu_process_memory_bytes)"},
    {Metric::gpu_xid_errors, "kdtree_gpu_xid_errors_total", counter, "1", kXid,
     "XID errors reported since the agent began; each event counts, the same XID again too.",
     "no such XID since the agent began", "one thread that waits for events of all GPUs",
     "kdtree_gpu_xid_errors_total"},
    {Metric::gpu_xid_last_timestamp, "kdtree_gpu_xid_last_timestamp_seconds", gauge, "seconds",
     kXid,
     "Unix time at which the agent learned of the last event of this XID: for alerts, because "
     "increase() misses the first one.",
     "no such XID since the agent began", kNoCost,
     "time() - kdtree_gpu_xid_last_timestamp_seconds < 900"},
    {Metric::gpus_visible,
     "kdtree_gpus_visible",
     gauge,
     "1",
     {},
     "GPUs that NVML lists.",
     "NVML is not usable (kdtree_nvml_up is 0)",
     kNoCost,
     "kdtree_gpus_visible"},
    {Metric::gpus_expected,
     "kdtree_gpus_expected",
     gauge,
     "1",
     {},
     "GPUs that the configuration asks for: one a rank, where kernel.device is cuda.",
     "no configuration, or kernel.device is cpu",
     kNoCost,
     "kdtree_gpus_visible < kdtree_gpus_expected"},
    {Metric::nvml_up,
     "kdtree_nvml_up",
     gauge,
     "1",
     {},
     "1 while NVML is loaded, answers and lists at least one GPU.",
     kNever,
     kNoCost,
     "kdtree_nvml_up == 0"},
    {Metric::nvml_failure_info, "kdtree_nvml_failure_info", gauge, "1", kFailure,
     "Why kdtree_nvml_up is 0: starting, library_missing, library_unfit, driver_not_loaded, "
     "driver_mismatch, no_permission, no_gpu, hung, error; the value is 1.",
     "kdtree_nvml_up is 1", kNoCost, "kdtree_nvml_failure_info"},
    {Metric::nvml_events_up,
     "kdtree_nvml_events_up",
     gauge,
     "1",
     {},
     "1 while the agent waits for XID events of every GPU that NVML lists; at 0 an XID may go "
     "unseen.",
     kNever,
     kNoCost,
     "kdtree_nvml_events_up == 0"},
};

}  // namespace

std::span<const MetricSpec> gpu_metrics() { return kCatalog; }

}  // namespace kdtree
