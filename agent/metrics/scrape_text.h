// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "agent/util/result.h"

namespace kdtree {

struct Series {
  std::string name;
  std::map<std::string, std::string> labels;
  double value = 0;
  // "" = there is no such label.
  std::string label(const std::string& key) const;
};

// The series of a scrape in Prometheus' text format 0.0.4; comments are skipped.
// Errors: refused, with the line that is none.
Result<std::vector<Series>> parse_scrape(std::string_view text);

}  // namespace kdtree
