// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

#include "agent/util/result.h"

namespace kdtree {

// One YAML document as JSON: mappings, sequences, and scalars, of which plain ones can be booleans,
// null and integers. Errors: usage, with the line: not YAML, two documents, an anchor, a key given
// twice, nested deeper than 16.
Result<nlohmann::json> yaml_to_json(std::string_view text, const std::string& where);

}  // namespace kdtree
