// SPDX-License-Identifier: Apache-2.0
#include "agent/cli/context.h"

#include <unistd.h>

#include "agent/plan/state.h"

namespace kdtree {

Result<const Config*> Context::config() {
  if (!config_) {
    KDTREE_TRY_ASSIGN(auto loaded, load_config(root));
    config_ = std::move(loaded);
  }
  return &*config_;
}

Result<const Config*> Context::config_or_recorded() {
  auto read = config();
  if (read) return read;
  if (!recorded_) {
    const auto state = read_state(root);
    if (!state || !state->configuration) return read;
    auto kept = parse_config(*state->configuration, "the configuration in state.json");
    if (!kept) return read;
    recorded_ = std::move(*kept);
    out.note("warning: " + read.error().what +
             "; going on with the configuration of the last change, which " +
             root(paths::kState).string() + "/state.json has kept");
  }
  return &*recorded_;
}

Result<ServiceManager*> Context::services(BusRoute route) {
  if (!services_) {
    if (!root.is_host())
      return fail(ExitCode::refused, "no systemd under the root " + root.prefix().string(),
                  "--root moves files only; run this on the host itself");
    KDTREE_TRY_ASSIGN(services_, connect_to_systemd(route));
  }
  return services_.get();
}

Status Context::need_root(const std::string& verb) const {
  if (!root.is_host() || geteuid() == 0) return {};
  return fail(ExitCode::refused, verb + " changes this host and needs root", "run it with sudo");
}

}  // namespace kdtree
