// SPDX-License-Identifier: Apache-2.0
#include "agent/unitfile/unit_file.h"

#include <algorithm>

namespace kdtree {
namespace {

constexpr std::string_view kBlanks = " \t\n\r";

std::string_view stripped(std::string_view text) {
  const std::size_t begin = text.find_first_not_of(kBlanks);
  if (begin == std::string_view::npos) return {};
  return text.substr(begin, text.find_last_not_of(kBlanks) - begin + 1);
}

bool is_comment(std::string_view line) {
  const auto text = stripped(line);
  return !text.empty() && (text[0] == '#' || text[0] == ';');
}

bool continues(std::string_view line) {
  std::size_t backslashes = 0;
  while (backslashes < line.size() && line[line.size() - 1 - backslashes] == '\\') ++backslashes;
  return backslashes % 2 == 1;
}

// One logical line: raw bytes and the joined text; `at` moves behind its newline.
struct Joined {
  std::string raw, text;
  bool newline = true;
};

Joined next_line(std::string_view text, std::size_t& at) {
  Joined joined;
  bool first = true;
  while (at < text.size()) {
    const std::size_t newline = text.find('\n', at);
    const std::string_view line =
        text.substr(at, newline == std::string_view::npos ? newline : newline - at);
    joined.newline = newline != std::string_view::npos;
    at = joined.newline ? newline + 1 : text.size();
    if (!first) joined.raw += '\n';
    joined.raw += line;
    // systemd leaves comments in the middle of a continued line out of it.
    const bool skipped = !first && is_comment(line);
    if (!skipped) joined.text += line;
    if (first && is_comment(line)) return joined;
    first = false;
    if (skipped) continue;
    if (!continues(line)) return joined;
    joined.text.back() = ' ';
  }
  return joined;
}

}  // namespace

Result<UnitFile> UnitFile::parse(std::string_view text, const std::string& where) {
  UnitFile file;
  std::string section;
  std::size_t at = 0;
  if (text.starts_with("\xEF\xBB\xBF")) {
    file.byte_order_mark_ = true;
    text.remove_prefix(3);
  }
  while (at < text.size()) {
    const std::size_t number = static_cast<std::size_t>(
        1 + std::count(text.begin(), text.begin() + static_cast<std::ptrdiff_t>(at), '\n'));
    Joined joined = next_line(text, at);
    file.ends_with_newline_ = joined.newline;
    UnitLine line;
    line.raw = std::move(joined.raw);
    const std::string_view content = stripped(joined.text);
    if (content.find('\0') != std::string_view::npos)
      return fail(ExitCode::usage,
                  where + ", line " + std::to_string(number) + ": holds a NUL byte");
    if (content.empty()) {
      line.kind = UnitLine::Kind::blank;
    } else if (content[0] == '#' || content[0] == ';') {
      line.kind = UnitLine::Kind::comment;
    } else if (content[0] == '[') {
      if (content.back() != ']')
        return fail(ExitCode::usage, where + ", line " + std::to_string(number) +
                                         ": a section without its closing bracket");
      line.kind = UnitLine::Kind::section;
      section = content.substr(1, content.size() - 2);
    } else if (const std::size_t equals = content.find('=');
               equals != std::string_view::npos && equals > 0) {
      line.kind = UnitLine::Kind::setting;
      line.key = stripped(content.substr(0, equals));
      line.value = stripped(content.substr(equals + 1));
    } else {
      line.kind = UnitLine::Kind::ignored;
    }
    line.section = section;
    file.lines_.push_back(std::move(line));
  }
  return file;
}

std::string UnitFile::text() const {
  std::string text = byte_order_mark_ ? "\xEF\xBB\xBF" : "";
  for (const auto& line : lines_) text += line.raw + '\n';
  if (!lines_.empty() && !ends_with_newline_) text.pop_back();
  return text;
}

std::vector<std::string> UnitFile::values(std::string_view section, std::string_view key) const {
  std::vector<std::string> found;
  for (const auto& line : lines_)
    if (line.kind == UnitLine::Kind::setting && line.section == section && line.key == key)
      found.push_back(line.value);
  return found;
}

std::vector<std::string> effective_values(const std::vector<UnitFile>& files,
                                          std::string_view section, std::string_view key) {
  std::vector<std::string> effective;
  for (const auto& file : files) {
    for (auto& value : file.values(section, key)) {
      if (value.empty())
        effective.clear();
      else
        effective.push_back(std::move(value));
    }
  }
  return effective;
}

}  // namespace kdtree
