// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>

#include "agent/util/result.h"
#include "agent/util/root.h"

// What is kept of a change that failed: /var/lib/kdtree/evidence/<name>.txt, for people. State
// refers to it by that path.
namespace kdtree {

// Keeps `text`, and of all the newest `kept` only. Returns the path. Errors: refused.
Result<std::string> write_evidence(const Root& root, const std::string& name, std::string_view text,
                                   std::size_t kept);

// nullopt where it isn't kept any more. Errors: refused: not such a path, or unreadable.
Result<std::optional<std::string>> read_evidence(const Root& root, const std::string& path);

}  // namespace kdtree
