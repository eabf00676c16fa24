// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <filesystem>

#include "agent/util/result.h"

namespace kdtree {

// May root run or read `path` as its own? Every folder and link on the way to it, and the file that
// they lead to, must belong to root (or to the caller, for tests) and be writable by nobody else; a
// folder with the sticky bit may be. An owner outside our user namespace counts as root: nobody in
// here can act as it. Errors: refused, naming the first that isn't so and what to do; also for a
// path that isn't there.
Status check_only_root_replaces(const std::filesystem::path& path);

}  // namespace kdtree
