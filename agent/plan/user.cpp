// SPDX-License-Identifier: Apache-2.0
#include "agent/plan/user.h"

#include <pwd.h>
#include <unistd.h>

#include <cstdlib>
#include <string_view>

namespace kdtree {

std::string asking_user() {
  constexpr std::string_view kPlain =
      "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-@";
  const char* sudo = std::getenv("SUDO_USER");
  const std::string_view name = sudo != nullptr ? sudo : "";
  if (!name.empty() && name.size() <= 64 && name.find_first_not_of(kPlain) == name.npos)
    return std::string(name);
  const passwd* entry = ::getpwuid(::getuid());
  return entry != nullptr ? entry->pw_name : std::to_string(::getuid());
}

}  // namespace kdtree
