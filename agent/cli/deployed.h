// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <filesystem>
#include <string>

#include "agent/cli/context.h"
#include "agent/plan/state.h"

namespace kdtree {

// state.json of this host. Errors: refused where nothing is deployed, with what to do.
Result<State> need_deployed(const Context& context);

std::filesystem::path release_folder(const Root& root, const std::string& release);

}  // namespace kdtree
