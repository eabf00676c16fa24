// SPDX-License-Identifier: Apache-2.0
#include "agent/metrics/catalog_parts.h"

namespace kdtree {
namespace {

using enum MetricType;

constexpr LabelNames<1> kMode{"mode"};
constexpr LabelNames<1> kRelease{"release"};
constexpr LabelNames<1> kKind{"kind"};
constexpr LabelNames<1> kVersion{"version"};
constexpr LabelNames<1> kCollector{"collector"};

constexpr std::string_view kNoControl = "there is no control file, or it can't be read";
constexpr std::string_view kFileCost = "one small file read a second";

constexpr MetricSpec kCatalog[] = {
    {Metric::host_up,
     "kdtree_host_up",
     gauge,
     "1",
     {},
     "1 if configuration, control file, state and current release could be read, or are plainly "
     "not "
     "there.",
     kNever,
     kNoCost,
     "kdtree_host_up == 0"},
    {Metric::mode, "kdtree_mode", gauge, "1", kMode,
     "1 for the mode that the host is meant to be in (off, validate, on), 0 for the others: the "
     "control file's; while there is none, that in which all living ranks were started.",
     "the control file can't be read; there is none, and no rank lives or they differ", kFileCost,
     "kdtree_mode == 1"},
    {Metric::control_generation,
     "kdtree_control_generation",
     gauge,
     "1",
     {},
     "Generation of the control file; ranks echo it in kdtree_rank_control_generation.",
     kNoControl,
     kFileCost,
     "kdtree_control_generation"},
    {Metric::release_info, "kdtree_release_info", gauge, "1", kRelease,
     "The release that /opt/kdtree/current names; the value is 1.", "no release is current",
     kFileCost, "kdtree_release_info"},
    {Metric::trial,
     "kdtree_trial",
     gauge,
     "1",
     {},
     "1 while a change has not passed its health gate yet: it will be marked good or undone. 0 "
     "once "
     "nothing is on trial.",
     "there is no /var/lib/kdtree/state.json, or it can't be read",
     kFileCost,
     "kdtree_trial == 1"},
    {Metric::drift, "kdtree_drift", gauge, "1", kKind,
     "1 if what runs is not what is meant: kind mode (a rank is armed in another mode than the "
     "control file's), release (a rank runs another release than the current one), engine (a "
     "process "
     "runs another engine or torch than the current release was made for), ranks (fewer or more "
     "armed ranks than the configuration names).",
     "one of the two sides is unknown, or no rank lives", kNoCost, "kdtree_drift == 1"},
    {Metric::agent_build_info, "kdtree_agent_build_info", gauge, "1", kVersion,
     "The agent's version; the value is 1.", kNever, kNoCost, "kdtree_agent_build_info"},
    {Metric::agent_cpu_seconds,
     "kdtree_agent_cpu_seconds_total",
     counter,
     "seconds",
     {},
     "CPU time that the agent has used.",
     kNever,
     kNoCost,
     "rate(kdtree_agent_cpu_seconds_total[5m])"},
    {Metric::agent_resident_memory,
     "kdtree_agent_resident_memory_bytes",
     gauge,
     "bytes",
     {},
     "The agent's memory, the driver's library in it.",
     "/proc/self/statm can't be read",
     kNoCost,
     "kdtree_agent_resident_memory_bytes"},
    {Metric::agent_start_time,
     "kdtree_agent_start_time_seconds",
     gauge,
     "seconds",
     {},
     "Unix time at which the agent began.",
     kNever,
     kNoCost,
     "time() - kdtree_agent_start_time_seconds"},
    {Metric::collector_age, "kdtree_collector_age_seconds", gauge, "seconds", kCollector,
     "Time since this collector last ended well; of the oldest GPU where there are several. gpus "
     "(kdtree_nvml_up), pcie, files (kdtree_stats_up, kdtree_host_up).",
     "it never ended well, or there is nothing that it could read", kNoCost,
     "kdtree_collector_age_seconds > 30"},
    {Metric::collector_duration, "kdtree_collector_duration_seconds", gauge, "seconds", kCollector,
     "How long this collector's last turn took; of the slowest GPU where there are several.",
     "it never ended well, or there is nothing that it could read", kNoCost,
     "kdtree_collector_duration_seconds"},
};

}  // namespace

std::span<const MetricSpec> host_metrics() { return kCatalog; }

}  // namespace kdtree
