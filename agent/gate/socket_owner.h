// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <sys/types.h>

#include <optional>
#include <string>
#include <vector>

#include "agent/util/root.h"

namespace kdtree {

// The port of an http(s) URL whose host is this machine's loopback; nullopt for any other URL.
std::optional<int> loopback_port(const std::string& url);

// Pids in the control group `group` ("/system.slice/x.service") and below it; empty where it can't
// be told.
std::vector<pid_t> control_group_pids(const Root& root, const std::string& group);

enum class Listener {
  ours,     // a process of the control group listens on the port
  foreign,  // somebody does, and none of the control group's processes
  nobody,   // nobody listens on it
  unknown,  // can't be told here: no /proc/net/tcp, no control group, no permission
};

struct ListenerAnswer {
  Listener listener = Listener::unknown;
  std::string detail;  // foreign: "nginx (pid 812)" where it can be found out; unknown: why
};

// Who listens on TCP `port` in our own network namespace.
ListenerAnswer find_listener(const Root& root, int port, const std::string& control_group);

}  // namespace kdtree
