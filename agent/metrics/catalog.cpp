// SPDX-License-Identifier: Apache-2.0
#include "agent/metrics/catalog.h"

#include <nlohmann/json.hpp>
#include <vector>

#include "agent/metrics/catalog_parts.h"

namespace kdtree {
namespace {

struct Part {
  std::span<const MetricSpec> metrics;
  std::string_view title;
};

std::vector<Part> parts() {
  return {{gpu_metrics(), "GPUs"},
          {rank_metrics(), "Ranks and verify"},
          {moe_metrics(), "Experts (MoE)"},
          {host_metrics(), "Host and agent"}};
}

std::string with_labels(const MetricSpec& spec) {
  std::string text(spec.name);
  char separator = '{';
  for (std::string_view label : spec.labels) (text += separator) += label, separator = ',';
  return spec.labels.empty() ? text : text + '}';
}

// In a table cell of Markdown.
std::string cell(std::string_view text) {
  std::string out;
  for (char c : text) (c == '|' ? out += "\\|" : out += c);
  return out;
}

}  // namespace

std::span<const MetricSpec> metric_catalog() {
  static const std::vector<MetricSpec> all = [] {
    std::vector<MetricSpec> specs;
    for (const Part& part : parts())
      specs.insert(specs.end(), part.metrics.begin(), part.metrics.end());
    return specs;
  }();
  return all;
}

const MetricSpec& metric_spec(Metric id) { return metric_catalog()[static_cast<std::size_t>(id)]; }

std::string_view metric_type_name(MetricType type) {
  switch (type) {
    case MetricType::counter:
      return "counter";
    case MetricType::histogram:
      return "histogram";
    case MetricType::gauge:
      break;
  }
  return "gauge";
}

std::string catalog_as_text() {
  std::string text;
  for (const MetricSpec& spec : metric_catalog()) {
    ((text += with_labels(spec)) += "  ") += metric_type_name(spec.type);
    ((text += ", ") += spec.unit) += "\n    ";
    ((text += spec.help) += "\n    absent when: ") += spec.absent;
    ((text += "\n    cost: ") += spec.cost) += '\n';
  }
  return text;
}

std::string catalog_as_json() {
  nlohmann::ordered_json metrics = nlohmann::ordered_json::array();
  for (const MetricSpec& spec : metric_catalog()) {
    nlohmann::ordered_json labels = nlohmann::ordered_json::array();
    for (std::string_view label : spec.labels) labels.push_back(label);
    metrics.push_back({{"name", spec.name},
                       {"type", metric_type_name(spec.type)},
                       {"unit", spec.unit},
                       {"labels", labels},
                       {"help", spec.help},
                       {"absent", spec.absent},
                       {"cost", spec.cost},
                       {"example", spec.example}});
  }
  return nlohmann::ordered_json{{"metrics", metrics}}.dump(2) + "\n";
}

std::string catalog_as_markdown() {
  std::string text =
      "# Metrics\n\nWritten by `kdtree-agent --list-metrics=markdown` from the agent's own "
      "catalogue; "
      "don't edit it. A series exists only while\nits value is known: unknown is never 0, and an "
      "old "
      "value is never repeated.\n";
  for (const Part& part : parts()) {
    (text += "\n## ") += part.title;
    text += "\n";
    for (const MetricSpec& spec : part.metrics) {
      ((text += "\n### `") += with_labels(spec)) += "`\n\n";
      ((text += spec.help) += "\n\n| type | unit | absent when | cost |\n|---|---|---|---|\n| ") +=
          metric_type_name(spec.type);
      ((text += " | ") += spec.unit == "1" ? "–" : spec.unit) += " | ";
      ((text += cell(spec.absent)) += " | ") += cell(spec.cost);
      ((text += " |\n\n    ") += spec.example) += '\n';
    }
  }
  return text;
}

}  // namespace kdtree
