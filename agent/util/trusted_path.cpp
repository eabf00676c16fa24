// SPDX-License-Identifier: Apache-2.0
#include "agent/util/trusted_path.h"

#include <pwd.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <deque>
#include <string>

#include "agent/util/file.h"

namespace kdtree {
namespace {

namespace fs = std::filesystem;

constexpr int kMostLinks = 40;
constexpr uid_t kUnmapped = 65534;

// Not every user of the machine has an id in here.
bool in_partial_namespace() {
  const auto map = read_file("/proc/self/uid_map", 4096);
  return map && map->find("4294967295") == std::string::npos;
}

std::string user_name(uid_t uid) {
  const passwd* entry = ::getpwuid(uid);
  return entry != nullptr ? entry->pw_name : "user " + std::to_string(uid);
}

Status check_one(const fs::path& path, const struct stat& about, const fs::path& wanted) {
  const std::string where =
      path == wanted ? path.string() : wanted.string() + " (through " + path.string() + ")";
  const bool ours = about.st_uid == 0 || about.st_uid == ::geteuid() ||
                    (about.st_uid == kUnmapped && in_partial_namespace());
  if (!ours)
    return fail(ExitCode::refused,
                where + " belongs to " + user_name(about.st_uid) + ", not to root",
                "chown -h root " + path.string() + ", or run the engine's unit as " +
                    user_name(about.st_uid) + " (User=)");
  if (S_ISLNK(about.st_mode)) return {};
  if (S_ISDIR(about.st_mode) && (about.st_mode & S_ISVTX) != 0) return {};
  const bool by_group = (about.st_mode & S_IWGRP) != 0 && about.st_gid != 0;
  if (by_group || (about.st_mode & S_IWOTH) != 0)
    return fail(ExitCode::refused, where + " can be written by group or others",
                "chmod go-w " + path.string());
  return {};
}

void put_in_front(std::deque<fs::path>& left, const fs::path& path) {
  left.insert(left.begin(), path.begin(), path.end());
}

}  // namespace

Status check_only_root_replaces(const fs::path& path) {
  std::deque<fs::path> left;
  put_in_front(left, fs::absolute(path));
  fs::path at = "/";
  int links = 0;
  while (!left.empty()) {
    const fs::path part = left.front();
    left.pop_front();
    if (part.empty() || part == ".") continue;
    const fs::path next = part == ".." ? at.parent_path() : at / part;  // "/" stays "/"
    struct stat about {};
    if (::lstat(next.c_str(), &about) != 0)
      return tl::make_unexpected(io_error("looking at", next, errno));
    KDTREE_TRY(check_one(next, about, path));
    if (!S_ISLNK(about.st_mode)) {
      at = next;
      continue;
    }
    std::error_code error;
    const fs::path target = fs::read_symlink(next, error);
    if (error) return tl::make_unexpected(io_error("reading", next, error.value()));
    if (++links > kMostLinks) return tl::make_unexpected(io_error("following", path, ELOOP));
    put_in_front(left, target);
    if (target.is_absolute()) at = "/";
  }
  return {};
}

}  // namespace kdtree
