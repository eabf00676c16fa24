// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "agent/daemon/options.h"

namespace kdtree {

// Runs the agent until SIGTERM or SIGINT. Tells systemd READY=1 once it listens, WATCHDOG=1 while
// its own loop turns (a GPU that hangs is no reason to be restarted), STOPPING=1 at the end. Logs
// to stderr with <N> priorities: what it listens on, and each problem when it begins and ends.
// Errors: usage (an address that is none), refused (can't listen).
Status serve(const AgentOptions& options);

}  // namespace kdtree
