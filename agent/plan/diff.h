// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <string_view>

namespace kdtree {

// The lines of two small texts, each behind "  ", "- " or "+ ": removed ones before added ones, all
// unchanged ones kept.
std::string line_diff(std::string_view before, std::string_view after);

}  // namespace kdtree
