// SPDX-License-Identifier: Apache-2.0
#include "agent/metrics/scrape_text.h"

#include <cstdlib>

namespace kdtree {
namespace {

// name="value", with \\, \" and \n inside the value. False: it is none.
bool take_label(std::string_view& rest, Series& series) {
  const auto equals = rest.find("=\"");
  if (equals == std::string_view::npos) return false;
  const std::string key(rest.substr(0, equals));
  rest.remove_prefix(equals + 2);
  std::string value;
  while (!rest.empty() && rest.front() != '"') {
    char c = rest.front();
    rest.remove_prefix(1);
    if (c == '\\' && !rest.empty()) {
      c = rest.front() == 'n' ? '\n' : rest.front();
      rest.remove_prefix(1);
    }
    value += c;
  }
  if (rest.empty()) return false;
  rest.remove_prefix(1);
  series.labels[key] = std::move(value);
  return true;
}

std::optional<Series> series_of(std::string_view line) {
  Series series;
  const auto end = line.find_first_of("{ ");
  if (end == std::string_view::npos || end == 0) return std::nullopt;
  series.name = line.substr(0, end);
  line.remove_prefix(end);
  if (line.front() == '{') {
    line.remove_prefix(1);
    while (!line.empty() && line.front() != '}') {
      if (!take_label(line, series)) return std::nullopt;
      if (!line.empty() && line.front() == ',') line.remove_prefix(1);
    }
    if (line.empty()) return std::nullopt;
    line.remove_prefix(1);
  }
  const std::string number(line);
  char* stop = nullptr;
  series.value = std::strtod(number.c_str(), &stop);
  if (stop == number.c_str()) return std::nullopt;
  return series;
}

}  // namespace

std::string Series::label(const std::string& key) const {
  const auto found = labels.find(key);
  return found == labels.end() ? "" : found->second;
}

Result<std::vector<Series>> parse_scrape(std::string_view text) {
  std::vector<Series> all;
  while (!text.empty()) {
    const auto end = std::min(text.find('\n'), text.size());
    const std::string_view line = text.substr(0, end);
    text.remove_prefix(std::min(end + 1, text.size()));
    if (line.empty() || line.front() == '#') continue;
    auto series = series_of(line);
    if (!series)
      return fail(ExitCode::refused, "not a line of metrics: '" + std::string(line) + "'");
    all.push_back(std::move(*series));
  }
  return all;
}

}  // namespace kdtree
