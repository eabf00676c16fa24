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

enum class Format { text, openmetrics };

// OpenMetrics wants a point or an exponent in `le`.
void append_number(std::string& out, double value, Format format) {
  if (std::isinf(value)) {
    out += value > 0 ? "+Inf" : "-Inf";
    return;
  }
  char digits[32];
  const std::string_view number(digits,
                                std::to_chars(digits, digits + sizeof digits, value).ptr - digits);
  out += number;
  if (format == Format::openmetrics && number.find_first_of(".e") == std::string_view::npos)
    out += ".0";
}

void append_count(std::string& out, std::uint64_t value) {
  char digits[24];
  out.append(digits, std::to_chars(digits, digits + sizeof digits, value).ptr);
}

void append_escaped(std::string& out, std::string_view text, bool quotes) {
  for (char c : text) {
    if (c == '\\' || (quotes && c == '"')) out += '\\';
    (c == '\n') ? out += "\\n" : out += c;
  }
}

class Writer {
 public:
  explicit Writer(Format format) : format_(format) { out_.reserve(256 << 10); }

  void add(const MetricFamily& family, std::string_view unit) {
    add_head(family, unit);
    for (const ClientMetric& series : family.metric) {
      if (family.type != prometheus::MetricType::Histogram) {
        const bool counter = family.type == prometheus::MetricType::Counter;
        begin(family.name, "", series);
        append_number(out_, counter ? series.counter.value : series.gauge.value, format_);
        out_ += '\n';
        continue;
      }
      for (const ClientMetric::Bucket& bucket : series.histogram.bucket) {
        begin(family.name, "_bucket", series, bucket.upper_bound);
        append_count(out_, bucket.cumulative_count);
        out_ += '\n';
      }
      begin(family.name, "_count", series);
      append_count(out_, series.histogram.sample_count);
      out_ += '\n';
      begin(family.name, "_sum", series);
      append_number(out_, series.histogram.sample_sum, format_);
      out_ += '\n';
    }
  }

  std::string text() && { return std::move(out_); }

 private:
  void add_head(const MetricFamily& family, std::string_view unit) {
    const bool open = format_ == Format::openmetrics;
    const bool counter = family.type == prometheus::MetricType::Counter;
    const bool histogram = family.type == prometheus::MetricType::Histogram;
    std::string_view name = family.name;
    if (open && counter && name.ends_with("_total")) name.remove_suffix(6);
    ((out_ += "# HELP ") += name) += ' ';
    append_escaped(out_, family.help, open);
    ((out_ += "\n# TYPE ") += name) += counter     ? " counter\n"
                                       : histogram ? " histogram\n"
                                                   : " gauge\n";
    if (open && unit != "1" && name.ends_with("_" + std::string(unit)))
      (((out_ += "# UNIT ") += name) += ' ').append(unit) += '\n';
  }

  // Name and labels, up to the space before the value.
  void begin(std::string_view name, std::string_view suffix, const ClientMetric& series,
             std::optional<double> le = std::nullopt) {
    (out_ += name) += suffix;
    char separator = '{';
    for (const ClientMetric::Label& label : series.label) {
      ((out_ += separator) += label.name) += "=\"";
      append_escaped(out_, label.value, true);
      out_ += '"';
      separator = ',';
    }
    if (le) {
      (out_ += separator) += "le=\"";
      append_number(out_, *le, format_);
      out_ += '"';
      separator = ',';
    }
    if (separator == ',') out_ += '}';
    out_ += ' ';
  }

  const Format format_;
  std::string out_;
};

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

std::string as_text(const std::vector<MetricFamily>& families) {
  Writer writer(Format::text);
  for (const MetricFamily& family : families) writer.add(family, "1");
  return std::move(writer).text();
}

std::string as_openmetrics(const std::vector<MetricFamily>& families) {
  std::map<std::string_view, std::string_view> units;
  for (const MetricSpec& spec : metric_catalog()) units[spec.name] = spec.unit;
  Writer writer(Format::openmetrics);
  for (const MetricFamily& family : families) {
    const auto unit = units.find(family.name);
    writer.add(family, unit == units.end() ? "1" : unit->second);
  }
  return std::move(writer).text() + "# EOF\n";
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
