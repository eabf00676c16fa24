// SPDX-License-Identifier: Apache-2.0
#include "agent/cli/output.h"

#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdlib>
#include <iostream>
#include <nlohmann/json.hpp>

namespace kdtree {
namespace {

constexpr long long kQuietMs = 30'000;

bool is_terminal(int fd) {
  const char* term = std::getenv("TERM");
  return isatty(fd) == 1 && term != nullptr && std::string_view(term) != "dumb";
}

bool color_unwanted() {
  const char* no_color = std::getenv("NO_COLOR");
  return no_color != nullptr && *no_color != '\0';
}

long long now_ms() {
  return std::chrono::duration_cast<std::chrono::milliseconds>(
             std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

constexpr std::string_view kReset = "\x1b[0m";

std::string_view color_of(Tone tone) {
  switch (tone) {
    case Tone::good:
      return "\x1b[32m";
    case Tone::warning:
      return "\x1b[33m";
    case Tone::bad:
      return "\x1b[31;1m";
    default:
      return "\x1b[2m";
  }
}

// The length of the sequence of ours that `text` begins with; 0 = none.
std::size_t color_length(std::string_view text) {
  for (const auto color : {color_of(Tone::good), color_of(Tone::warning), color_of(Tone::bad),
                           color_of(Tone::dim), kReset})
    if (text.starts_with(color)) return color.size();
  return 0;
}

// Columns on screen, near enough: code points, not bytes.
std::size_t width(std::string_view text) {
  return static_cast<std::size_t>(
      std::ranges::count_if(text, [](unsigned char c) { return (c & 0xC0) != 0x80; }));
}

std::string padded(std::string_view text, std::size_t columns) {
  std::string out(text);
  out.append(columns - std::min(columns, width(text)), ' ');
  return out;
}

std::size_t terminal_columns() {
  winsize size{};
  return ioctl(STDERR_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 20 ? size.ws_col : 80;
}

}  // namespace

Output::Output()
    : color_out_(is_terminal(STDOUT_FILENO) && !color_unwanted()),
      tty_err_(is_terminal(STDERR_FILENO)) {}

void Output::line(std::string_view text) {
  end_progress();
  std::cout << without_controls(text, color_out_) << '\n' << std::flush;
}

void Output::drawing(const std::vector<std::string>& lines, std::size_t over) {
  end_progress();
  if (over > 0) std::cout << "\x1b[" << over << "A\x1b[J";
  for (const auto& each : lines) std::cout << each << '\n';
  std::cout << std::flush;
}

void Output::json(const nlohmann::ordered_json& value) {
  line(value.dump(2, ' ', false, nlohmann::ordered_json::error_handler_t::replace));
}

void Output::pairs(const std::vector<std::pair<std::string, std::string>>& rows) {
  std::size_t columns = 0;
  for (const auto& row : rows) columns = std::max(columns, width(row.first));
  for (const auto& [name, value] : rows) line(padded(name, columns) + "  " + value);
}

void Output::table(const std::vector<std::string>& header,
                   const std::vector<std::vector<std::string>>& rows) {
  std::vector<std::size_t> columns;
  columns.reserve(header.size());
  for (const auto& name : header) columns.push_back(width(name));
  for (const auto& row : rows)
    for (std::size_t i = 0; i < row.size() && i < columns.size(); ++i)
      columns[i] = std::max(columns[i], width(row[i]));
  auto print = [&](const std::vector<std::string>& cells, Tone tone) {
    std::string text;
    for (std::size_t i = 0; i < cells.size(); ++i)
      text += i + 1 < cells.size() ? padded(cells[i], columns[i]) + "  " : cells[i];
    line(paint(tone, text));
  };
  print(header, Tone::dim);
  for (const auto& row : rows) print(row, Tone::plain);
}

std::string Output::paint(Tone tone, std::string_view text) const {
  if (!color_out_ || tone == Tone::plain) return std::string(text);
  return std::string(color_of(tone)) + without_controls(text, false) + std::string(kReset);
}

void Output::note(std::string_view text) {
  end_progress();
  std::cerr << without_controls(text, false) << '\n' << std::flush;
}

void Output::progress(std::string_view stage, std::string_view text) {
  const auto now = now_ms();
  if (tty_err_) {
    const std::string shown = without_controls(text.substr(0, terminal_columns() - 1), false);
    std::cerr << "\r\x1b[K" << shown << std::flush;
    line_open_ = true;
  } else if (stage != last_stage_ || now - last_printed_ms_ >= kQuietMs) {
    std::cerr << without_controls(text, false) << '\n' << std::flush;
    last_printed_ms_ = now;
  }
  last_stage_ = stage;
}

void Output::end_progress() {
  if (line_open_) std::cerr << '\n' << std::flush;
  line_open_ = false;
  last_stage_.clear();
}

void Output::error(const Error& error) {
  note("kdtreectl: " + error.what + (error.hint.empty() ? "" : "; " + error.hint));
}

bool Output::confirm(std::string_view question) {
  if (!isatty(STDIN_FILENO)) return false;
  end_progress();
  std::cerr << without_controls(question, false) << " [y/N] " << std::flush;
  std::string answer;
  std::getline(std::cin, answer);
  return answer == "y" || answer == "Y" || answer == "yes";
}

std::string without_controls(std::string_view text, bool colors) {
  std::string out;
  out.reserve(text.size());
  for (std::size_t i = 0; i < text.size(); ++i) {
    const auto c = static_cast<unsigned char>(text[i]);
    const std::size_t color = colors && c == 0x1b ? color_length(text.substr(i)) : 0;
    if (color > 0) {
      out += text.substr(i, color);
      i += color - 1;
      continue;
    }
    const bool c1 = c == 0xc2 && i + 1 < text.size() &&
                    static_cast<unsigned char>(text[i + 1]) >= 0x80 &&
                    static_cast<unsigned char>(text[i + 1]) < 0xa0;
    if (c1) ++i;
    out += c1 || (c < 0x20 && c != '\n') || c == 0x7f ? ' ' : text[i];
  }
  return out;
}

std::string human_duration(long long milliseconds) {
  if (milliseconds < 0) milliseconds = 0;
  if (milliseconds < 10'000) {
    std::array<char, 16> text{};
    std::snprintf(text.data(), text.size(), "%.1f s", static_cast<double>(milliseconds) / 1000.0);
    return text.data();
  }
  const long long seconds = milliseconds / 1000;
  if (seconds < 60) return std::to_string(seconds) + " s";
  if (seconds < 3600)
    return std::to_string(seconds / 60) + " min" +
           (seconds % 60 ? " " + std::to_string(seconds % 60) + " s" : "");
  return std::to_string(seconds / 3600) + " h" +
         (seconds % 3600 / 60 ? " " + std::to_string(seconds % 3600 / 60) + " min" : "");
}

std::string human_bytes(unsigned long long bytes) {
  static constexpr std::array kUnits = {"B", "KiB", "MiB", "GiB", "TiB"};
  auto value = static_cast<double>(bytes);
  std::size_t unit = 0;
  while (value >= 1024 && unit + 1 < kUnits.size()) {
    value /= 1024;
    ++unit;
  }
  std::array<char, 32> text{};
  std::snprintf(text.data(), text.size(), unit == 0 ? "%.0f %s" : "%.1f %s", value, kUnits[unit]);
  return text.data();
}

}  // namespace kdtree
