// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "agent/util/result.h"
#include "agent/util/unique_fd.h"

namespace kdtree {

// A listening socket at "host:port", "[v6]:port" or "unix:/path". host is a numeric address or
// "localhost"; port 0 = any free one. A Unix socket is for its owner and group (0660); one that
// nobody listens on any more is replaced, anything else at the path is not.
// Errors: usage (not an address), refused (in use, not allowed, not an address of this host).
Result<UniqueFd> listen_on(const std::string& address);

// Whether others than this host's own processes can reach the socket.
bool is_beyond_loopback(int listener);

// Whether an address for listen_on names nothing but this host itself.
bool is_loopback_address(const std::string& address);

// "http://host:port", "https://host:port", "unix:/path": for people.
std::string shown_address(const std::string& address, bool tls);

}  // namespace kdtree
