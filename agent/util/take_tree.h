// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <filesystem>

#include "agent/util/result.h"

namespace kdtree {

// Copies the tree `from`, which another user made and may still have processes in, to `to`, which
// must not exist: folders and regular files only, owned by the caller, folders and files with an
// execute bit 0755, other files 0644. Folders of `from` are taken from that user first, so that
// nothing can be moved under the copying. Errors: refused: a link, a file with more than one name,
// anything else that isn't plain; `to` is then a part.
Status take_tree(const std::filesystem::path& from, const std::filesystem::path& to);

}  // namespace kdtree
