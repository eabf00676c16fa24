// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <prometheus/metric_family.h>

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "agent/metrics/catalog.h"

namespace kdtree {

// Collects the series of one scrape. Nothing is kept from scrape to scrape, so a value that is not
// known now has no series now.
class Exposition {
 public:
  Exposition();

  // Label values in the catalogue's order. Bytes other than printable ASCII become '?': a label may
  // come from a file that the engine's user wrote, and one bad byte would make Prometheus drop the
  // whole scrape. A value that is not a finite number is left out.
  void add(Metric metric, const std::vector<std::string>& labels, double value);
  void add(Metric metric, double value) { add(metric, {}, value); }

  // `bounds`: upper ones, inclusive, ascending; `counts`: of each bucket alone, the last one's
  // bound included, so that nothing lies above it.
  void add_histogram(Metric metric, const std::vector<std::string>& labels,
                     std::span<const double> bounds, std::span<const std::uint64_t> counts,
                     double sum);

  // Families that have a series, in the catalogue's order.
  std::vector<prometheus::MetricFamily> families() const&;
  std::vector<prometheus::MetricFamily> families() &&;

 private:
  std::vector<prometheus::MetricFamily> families_;  // one for each Metric
};

// Prometheus' text format 0.0.4.
std::string as_text(const std::vector<prometheus::MetricFamily>& families);
inline constexpr std::string_view kTextFormat = "text/plain; version=0.0.4; charset=utf-8";

// OpenMetrics 1.0.0; units from the catalogue.
std::string as_openmetrics(const std::vector<prometheus::MetricFamily>& families);
inline constexpr std::string_view kOpenMetricsFormat =
    "application/openmetrics-text; version=1.0.0; charset=utf-8";

// What an Accept header (RFC 9110, "" = none) asks for: OpenMetrics 1.0.0 only where it is named
// and not valued below text/plain.
bool wants_openmetrics(std::string_view accept);

}  // namespace kdtree
