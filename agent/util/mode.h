// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <string_view>

namespace kdtree {

// Values are those of enum kdtree_mode in agent/stats/stats_abi.h.
enum class Mode : unsigned { off = 0, validate = 1, on = 2 };

inline constexpr Mode kAllModes[] = {Mode::off, Mode::validate, Mode::on};

constexpr std::string_view to_string(Mode mode) {
  switch (mode) {
    case Mode::off:
      return "off";
    case Mode::validate:
      return "validate";
    case Mode::on:
      return "on";
  }
  return "?";
}

constexpr std::optional<Mode> parse_mode(std::string_view text) {
  for (Mode mode : kAllModes)
    if (text == to_string(mode)) return mode;
  return std::nullopt;
}

}  // namespace kdtree
