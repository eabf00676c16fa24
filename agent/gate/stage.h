// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <string_view>

namespace kdtree {

// How far a starting engine has come, learned from its log. Ordered: a later one never follows an
// earlier one back.
enum class Stage { starting, joining, loading, memory, capture, warm_up, ready };

std::string_view stage_name(Stage stage);

// The stage that a log line of SGLang (0.5.x) begins; nullopt for every other line.
std::optional<Stage> stage_of_line(std::string_view line);

}  // namespace kdtree
