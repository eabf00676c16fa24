// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "agent/util/result.h"

// Text of a systemd unit or drop-in (systemd.syntax(7)): sections, repeated keys, continuation
// lines, comments.
namespace kdtree {

struct UnitLine {
  enum class Kind { blank, comment, section, setting, ignored } kind = Kind::blank;
  std::string raw;      // the bytes, newlines of continuations included, the last one not
  std::string section;  // the section that the line is in or begins
  std::string key;      // of a setting
  std::string value;    // of a setting: continuations joined by a blank, as systemd does
};

class UnitFile {
 public:
  // A line that is none of these is ignored, as systemd does. Errors: usage: a section without its
  // bracket, a NUL byte; with the line's number and `where`.
  static Result<UnitFile> parse(std::string_view text, const std::string& where);

  // The text again, byte for byte.
  std::string text() const;
  const std::vector<UnitLine>& lines() const { return lines_; }
  // Values of all settings `key` of `section`, in order; an empty one means "forget those before".
  std::vector<std::string> values(std::string_view section, std::string_view key) const;

 private:
  std::vector<UnitLine> lines_;
  bool ends_with_newline_ = true;
  bool byte_order_mark_ = false;
};

// Values of a setting over several files in their order, with the empty value's resetting applied.
std::vector<std::string> effective_values(const std::vector<UnitFile>& files,
                                          std::string_view section, std::string_view key);

}  // namespace kdtree
