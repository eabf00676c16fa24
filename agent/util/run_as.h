// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <sys/types.h>

#include <optional>
#include <string>
#include <vector>

#include "agent/util/result.h"

namespace kdtree {

// Another user for a program that root starts.
struct RunAs {
  std::string user;
  uid_t uid = 0;
  gid_t gid = 0;
  // To be put in front of an argument vector.
  std::vector<std::string> prefix() const;
};

// `user` and `group` as in a unit's User= and Group= (names or numbers, "" = not given). nullopt:
// nothing to change: we are not root, or the user is root. Errors: refused: no such user or group.
Result<std::optional<RunAs>> run_as(const std::string& user, const std::string& group);

}  // namespace kdtree
