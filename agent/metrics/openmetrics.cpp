// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <charconv>
#include <cmath>
#include <map>
#include <optional>

#include "agent/metrics/exposition.h"

namespace kdtree {
namespace {

using prometheus::ClientMetric;
using prometheus::MetricFamily;

// OpenMetrics wants a point or an exponent in `le`.
std::string number(double value) {
  if (std::isinf(value)) return value > 0 ? "+Inf" : "-Inf";
  char text[32];
  const auto end = std::to_chars(text, text + sizeof text, value).ptr;
  std::string out(text, end);
  if (out.find_first_of(".e") == std::string::npos) out += ".0";
  return out;
}

void escape_to(std::string& out, std::string_view text) {
  for (char c : text) {
    if (c == '\\' || c == '"') out += '\\';
    (c == '\n') ? out += "\\n" : out += c;
  }
}

void write(std::string& out, std::string_view name, const ClientMetric& series,
           const std::string& value, const std::string& le = {}) {
  out += name;
  char separator = '{';
  const auto label = [&](std::string_view key, std::string_view text) {
    ((out += separator) += key) += "=\"";
    escape_to(out, text);
    out += '"';
    separator = ',';
  };
  for (const ClientMetric::Label& pair : series.label) label(pair.name, pair.value);
  if (!le.empty()) label("le", le);
  if (separator == ',') out += '}';
  ((out += ' ') += value) += '\n';
}

void write_family(std::string& out, const MetricFamily& family, std::string_view unit) {
  std::string_view name = family.name;
  const bool counter = family.type == prometheus::MetricType::Counter;
  const bool histogram = family.type == prometheus::MetricType::Histogram;
  if (counter && name.ends_with("_total")) name.remove_suffix(6);
  ((out += "# TYPE ") += name) += counter ? " counter\n" : histogram ? " histogram\n" : " gauge\n";
  if (unit != "1" && name.ends_with("_" + std::string(unit)))
    (((out += "# UNIT ") += name) += ' ').append(unit) += '\n';
  ((out += "# HELP ") += name) += ' ';
  escape_to(out, family.help);
  out += '\n';
  for (const ClientMetric& series : family.metric) {
    if (!histogram) {
      write(out, family.name, series, number(counter ? series.counter.value : series.gauge.value));
      continue;
    }
    for (const ClientMetric::Bucket& bucket : series.histogram.bucket)
      write(out, family.name + "_bucket", series, std::to_string(bucket.cumulative_count),
            number(bucket.upper_bound));
    write(out, family.name + "_count", series, std::to_string(series.histogram.sample_count));
    write(out, family.name + "_sum", series, number(series.histogram.sample_sum));
  }
}

std::string_view trimmed(std::string_view text) {
  const auto first = text.find_first_not_of(" \t");
  if (first == std::string_view::npos) return {};
  return text.substr(first, text.find_last_not_of(" \t") - first + 1);
}

std::string lower(std::string_view text) {
  std::string out(text);
  std::transform(out.begin(), out.end(), out.begin(),
                 [](char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c + 32) : c; });
  return out;
}

struct MediaRange {
  std::string type;  // lower case
  std::string version;
  double quality = 1;
};

std::string_view take_until(std::string_view& rest, char end) {
  const auto at = std::min(rest.find(end), rest.size());
  const auto part = rest.substr(0, at);
  rest.remove_prefix(std::min(at + 1, rest.size()));
  return trimmed(part);
}

MediaRange media_range(std::string_view text) {
  MediaRange range;
  range.type = lower(take_until(text, ';'));
  while (!text.empty()) {
    std::string_view value = take_until(text, ';');
    const std::string key = lower(take_until(value, '='));
    value = trimmed(value);
    if (key == "version") range.version = value;
    if (key == "q" &&
        std::from_chars(value.data(), value.data() + value.size(), range.quality).ec != std::errc{})
      range.quality = 0;
  }
  return range;
}

}  // namespace

std::string as_openmetrics(const std::vector<MetricFamily>& families) {
  std::map<std::string_view, std::string_view> units;
  for (const MetricSpec& spec : metric_catalog()) units[spec.name] = spec.unit;
  std::string out;
  for (const MetricFamily& family : families) {
    const auto unit = units.find(family.name);
    write_family(out, family, unit == units.end() ? "1" : unit->second);
  }
  return out += "# EOF\n";
}

bool wants_openmetrics(std::string_view accept) {
  double openmetrics = 0;
  double text = 0;
  while (!accept.empty()) {
    const MediaRange range = media_range(take_until(accept, ','));
    if (range.type == "application/openmetrics-text" &&
        (range.version == "1.0.0" || range.version.empty()))
      openmetrics = std::max(openmetrics, range.quality);
    else if (range.type == "text/plain" && (range.version == "0.0.4" || range.version.empty()))
      text = std::max(text, range.quality);
  }
  return openmetrics > 0 && openmetrics >= text;
}

}  // namespace kdtree
