// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdio>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "agent/util/result.h"

namespace kdtree {

enum class Tone { plain, good, warning, bad, dim };

// What kdtreectl says. Facts go to stdout, everything else (progress, errors) to stderr. Colour and
// moving progress only on a terminal; NO_COLOR and TERM=dumb are respected. Much of what is said
// comes from the engine's processes: nothing of it reaches the terminal as a control character.
class Output {
 public:
  Output();

  void line(std::string_view text);  // one line on stdout
  void json(const nlohmann::ordered_json& value);
  // "name   value" pairs, values aligned.
  void pairs(const std::vector<std::pair<std::string, std::string>>& rows);
  // A table with a header line; the columns are as wide as they need to be.
  void table(const std::vector<std::string>& header,
             const std::vector<std::vector<std::string>>& rows);
  // Lines of a drawing with its own colours, as they are, over the last `over` lines of the
  // terminal. What they quote has to be without control characters.
  void drawing(const std::vector<std::string>& lines, std::size_t over = 0);
  // Is stdout a terminal that may be coloured and drawn over?
  bool colors() const { return color_out_; }
  // `text` in the colour of `tone`, where colors().
  std::string paint(Tone tone, std::string_view text) const;

  // One line on stderr. On a terminal progress() overwrites the last progress line; elsewhere it
  // prints a line only when `stage` changed or 30 s have passed.
  void note(std::string_view text);
  void progress(std::string_view stage, std::string_view text);
  void end_progress();  // leaves the last progress line standing

  // "kdtreectl: <what>; <hint>" on stderr.
  void error(const Error& error);

  // Asks on the terminal and returns true for "y" or "yes". Without a terminal: false.
  bool confirm(std::string_view question);

 private:
  bool color_out_ = false;
  bool tty_err_ = false;
  bool line_open_ = false;
  std::string last_stage_;
  long long last_printed_ms_ = 0;
};

// `text` without control characters (ASCII's, C1's) but newlines; each becomes a blank. With
// `colors`, the sequences of Output::paint stay.
std::string without_controls(std::string_view text, bool colors);

// "1.5 s", "12 s", "10 min 30 s", "2 h 5 min".
std::string human_duration(long long milliseconds);
// "17 B", "1.2 MiB".
std::string human_bytes(unsigned long long bytes);

}  // namespace kdtree
