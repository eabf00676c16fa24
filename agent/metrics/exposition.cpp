// SPDX-License-Identifier: Apache-2.0
#include "agent/metrics/exposition.h"

#include <prometheus/text_serializer.h>

#include <algorithm>
#include <cmath>
#include <sstream>

namespace kdtree {
namespace {

std::string printable(std::string text) {
  std::replace_if(
      text.begin(), text.end(), [](char c) { return c < 0x20 || c > 0x7e; }, '?');
  return text;
}

}  // namespace

Exposition::Exposition() {
  for (const MetricSpec& spec : metric_catalog()) {
    prometheus::MetricFamily family;
    family.name = spec.name;
    family.help = spec.help;
    family.type = spec.type == MetricType::counter ? prometheus::MetricType::Counter
                                                   : prometheus::MetricType::Gauge;
    families_.push_back(std::move(family));
  }
}

void Exposition::add(Metric metric, const std::vector<std::string>& labels, double value) {
  if (!std::isfinite(value)) return;
  const MetricSpec& spec = metric_spec(metric);
  prometheus::ClientMetric series;
  const std::size_t count = std::min(labels.size(), spec.labels.size());
  for (std::size_t i = 0; i < count; ++i)
    series.label.push_back({std::string(spec.labels[i]), printable(labels[i])});
  (spec.type == MetricType::counter ? series.counter.value : series.gauge.value) = value;
  families_[static_cast<std::size_t>(metric)].metric.push_back(std::move(series));
}

std::vector<prometheus::MetricFamily> Exposition::families() const {
  std::vector<prometheus::MetricFamily> present;
  std::copy_if(families_.begin(), families_.end(), std::back_inserter(present),
               [](const prometheus::MetricFamily& family) { return !family.metric.empty(); });
  return present;
}

std::string as_text(const std::vector<prometheus::MetricFamily>& families) {
  std::ostringstream out;
  prometheus::TextSerializer().Serialize(out, families);
  return std::move(out).str();
}

}  // namespace kdtree
