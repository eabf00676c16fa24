// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <set>
#include <string>

#include "agent/metrics/exposition.h"
#include "agent/metrics/host_view.h"
#include "agent/metrics/moe_tracker.h"
#include "agent/nvml/gpu_sampler.h"

// From what was read to series. No I/O but /proc/self in add_agent_metrics().
namespace kdtree {

void add_gpu_metrics(Exposition& out, const NvmlSnapshot& nvml, const Config* config);

// `seen`: every rank seen since the agent began.
void add_rank_metrics(Exposition& out, const HostView& view, const std::set<int>& seen);

// The rank that speaks for all of them of its routing; nullptr: none observes it.
const RankStats* moe_spokesman(const HostView& view);

// Shows the tracker what this look at the files found.
void follow_moe(MoeTracker& tracker, const HostView& view,
                std::chrono::steady_clock::time_point now);

// `tracker` has followed this view.
void add_moe_metrics(Exposition& out, const HostView& view, const MoeTracker& tracker);

// One series an expert of each layer: for those who ask for it.
void add_expert_metrics(Exposition& out, const MoeStats& moe);

void add_host_metrics(Exposition& out, const HostView& view);

void add_agent_metrics(Exposition& out, std::chrono::system_clock::time_point started);

}  // namespace kdtree
