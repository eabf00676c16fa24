// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "agent/util/result.h"
#include "agent/util/root.h"
#include "agent/util/unique_fd.h"

namespace kdtree {

// One kdtreectl at a time. The lock is the kernel's (flock): it is gone with its holder, however
// that ends, so it is never stale and nobody has to clear it. The file's text tells others who
// holds it: verb, pid, start time, boot id.
class LockFile {
 public:
  // Takes /run/kdtree/lock, without waiting. Errors: ExitCode::locked with the holder; refused if
  // it can't be made.
  static Result<LockFile> acquire(const Root& root, const std::string& verb);

  // Who holds it: "kdtreectl deploy (pid 4711, since 2026-11-30T17:30:46Z)"; "" = nobody. Takes
  // nothing and makes nothing. Errors: refused: it can't be read, as by others than root.
  static Result<std::string> holder(const Root& root);

  LockFile(LockFile&&) noexcept = default;
  LockFile& operator=(LockFile&&) noexcept = default;

 private:
  explicit LockFile(UniqueFd fd) : fd_(std::move(fd)) {}
  UniqueFd fd_;
};

}  // namespace kdtree
