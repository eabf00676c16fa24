// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>

#include "agent/metrics/catalog.h"

// The parts of the catalogue, each in a file of its own, in the order of enum Metric.
namespace kdtree {

std::span<const MetricSpec> gpu_metrics();
std::span<const MetricSpec> rank_metrics();
std::span<const MetricSpec> moe_metrics();
std::span<const MetricSpec> host_metrics();

template <std::size_t n>
using LabelNames = std::array<std::string_view, n>;

inline constexpr std::string_view kNever = "never";
inline constexpr std::string_view kNoCost = "none of its own";
inline constexpr std::string_view kStatsCost =
    "one reading of the rank's stats file a second, for all that is in it";

}  // namespace kdtree
