// SPDX-License-Identifier: Apache-2.0
#include "agent/plan/diff.h"

#include <algorithm>
#include <vector>

namespace kdtree {
namespace {

std::vector<std::string_view> lines_of(std::string_view text) {
  std::vector<std::string_view> lines;
  while (!text.empty()) {
    const std::size_t newline = std::min(text.find('\n'), text.size());
    lines.push_back(text.substr(0, newline));
    text.remove_prefix(std::min(newline + 1, text.size()));
  }
  return lines;
}

}  // namespace

std::string line_diff(std::string_view before, std::string_view after) {
  const auto a = lines_of(before);
  const auto b = lines_of(after);
  // common[i][j]: length of the longest common subsequence of a[i..] and b[j..].
  std::vector<std::vector<std::size_t>> common(a.size() + 1,
                                               std::vector<std::size_t>(b.size() + 1, 0));
  for (std::size_t i = a.size(); i-- > 0;)
    for (std::size_t j = b.size(); j-- > 0;)
      common[i][j] =
          a[i] == b[j] ? common[i + 1][j + 1] + 1 : std::max(common[i + 1][j], common[i][j + 1]);
  std::string text;
  const auto add = [&](std::string_view mark, std::string_view line) {
    text.append(mark).append(line).append("\n");
  };
  std::size_t i = 0;
  std::size_t j = 0;
  while (i < a.size() || j < b.size()) {
    if (i < a.size() && j < b.size() && a[i] == b[j]) {
      add("  ", a[i++]);
      ++j;
    } else if (i < a.size() && (j == b.size() || common[i + 1][j] >= common[i][j + 1])) {
      add("- ", a[i++]);
    } else {
      add("+ ", b[j++]);
    }
  }
  return text;
}

}  // namespace kdtree
