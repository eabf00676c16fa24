// SPDX-License-Identifier: Apache-2.0
#include "agent/cli/deployed.h"

namespace kdtree {

Result<State> need_deployed(const Context& context) {
  KDTREE_TRY_ASSIGN(auto state, read_state(context.root));
  if (state.current.none())
    return fail(ExitCode::refused, "no release is deployed on this host",
                "kdtreectl deploy makes one");
  return state;
}

std::filesystem::path release_folder(const Root& root, const std::string& release) {
  return root(std::filesystem::path(paths::kReleases) / release);
}

}  // namespace kdtree
