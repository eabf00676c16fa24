// SPDX-License-Identifier: Apache-2.0
#include "agent/util/run_as.h"

#include <grp.h>
#include <pwd.h>
#include <unistd.h>

#include <charconv>

namespace kdtree {
namespace {

std::optional<unsigned> as_number(const std::string& text) {
  unsigned number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc{} || end != text.data() + text.size()) return std::nullopt;
  return number;
}

Result<gid_t> group_id(const std::string& name) {
  if (const auto* known = ::getgrnam(name.c_str())) return known->gr_gid;
  if (const auto number = as_number(name)) return *number;
  return fail(ExitCode::refused, "there is no group " + name + " on this host",
              "the engine's unit names it in Group=");
}

}  // namespace

std::vector<std::string> RunAs::prefix() const {
  return {"setpriv", "--reuid=" + std::to_string(uid), "--regid=" + std::to_string(gid),
          "--init-groups", "--"};
}

Result<std::optional<RunAs>> run_as(const std::string& user, const std::string& group) {
  if (::geteuid() != 0 || user.empty()) return std::nullopt;
  const auto number = as_number(user);
  const passwd* known = number ? ::getpwuid(*number) : ::getpwnam(user.c_str());
  if (known == nullptr)
    return fail(ExitCode::refused, "there is no user " + user + " on this host",
                "the engine's unit names it in User=");
  if (known->pw_uid == 0) return std::nullopt;
  RunAs as{known->pw_name, known->pw_uid, known->pw_gid};
  if (!group.empty()) {
    KDTREE_TRY_ASSIGN(as.gid, group_id(group));
  }
  return as;
}

}  // namespace kdtree
