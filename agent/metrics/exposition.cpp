// SPDX-License-Identifier: Apache-2.0
#include "agent/metrics/exposition.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace kdtree {
namespace {

std::string printable(std::string text) {
  std::replace_if(
      text.begin(), text.end(), [](char c) { return c < 0x20 || c > 0x7e; }, '?');
  return text;
}

prometheus::MetricType family_type(MetricType type) {
  switch (type) {
    case MetricType::counter:
      return prometheus::MetricType::Counter;
    case MetricType::histogram:
      return prometheus::MetricType::Histogram;
    case MetricType::gauge:
      break;
  }
  return prometheus::MetricType::Gauge;
}

prometheus::ClientMetric labelled(const MetricSpec& spec, const std::vector<std::string>& labels) {
  prometheus::ClientMetric series;
  const std::size_t count = std::min(labels.size(), spec.labels.size());
  series.label.reserve(count);
  for (std::size_t i = 0; i < count; ++i)
    series.label.push_back({std::string(spec.labels[i]), printable(labels[i])});
  return series;
}

}  // namespace

Exposition::Exposition() {
  families_.reserve(metric_catalog().size());
  for (const MetricSpec& spec : metric_catalog()) {
    prometheus::MetricFamily family;
    family.name = spec.name;
    family.help = spec.help;
    family.type = family_type(spec.type);
    families_.push_back(std::move(family));
  }
}

void Exposition::add(Metric metric, const std::vector<std::string>& labels, double value) {
  if (!std::isfinite(value)) return;
  const MetricSpec& spec = metric_spec(metric);
  prometheus::ClientMetric series = labelled(spec, labels);
  (spec.type == MetricType::counter ? series.counter.value : series.gauge.value) = value;
  families_[static_cast<std::size_t>(metric)].metric.push_back(std::move(series));
}

void Exposition::add_histogram(Metric metric, const std::vector<std::string>& labels,
                               std::span<const double> bounds,
                               std::span<const std::uint64_t> counts, double sum) {
  if (!std::isfinite(sum)) return;
  prometheus::ClientMetric series = labelled(metric_spec(metric), labels);
  std::uint64_t so_far = 0;
  for (std::size_t i = 0; i < std::min(bounds.size(), counts.size()); ++i)
    series.histogram.bucket.push_back({so_far += counts[i], bounds[i]});
  series.histogram.bucket.push_back({so_far, std::numeric_limits<double>::infinity()});
  series.histogram.sample_count = so_far;
  series.histogram.sample_sum = sum;
  families_[static_cast<std::size_t>(metric)].metric.push_back(std::move(series));
}

std::vector<prometheus::MetricFamily> Exposition::families() const& {
  return Exposition(*this).families();
}

std::vector<prometheus::MetricFamily> Exposition::families() && {
  std::erase_if(families_, [](const auto& family) { return family.metric.empty(); });
  return std::move(families_);
}

}  // namespace kdtree
