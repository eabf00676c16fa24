// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <optional>
#include <string_view>

namespace kdtree {

// Who answers a verify call. The numbers are those of enum kdtree_mode in agent/stats/stats_abi.h.
enum class Mode {
  off = 0,       // the engine's own kernel
  validate = 1,  // both run, the engine's own answers, the difference is kept
  on = 2,        // kdtree's kernel
};

inline constexpr std::array<Mode, 3> kModes{Mode::off, Mode::validate, Mode::on};

constexpr std::string_view mode_name(Mode mode) {
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
  for (Mode mode : kModes)
    if (text == mode_name(mode)) return mode;
  return std::nullopt;
}

}  // namespace kdtree
