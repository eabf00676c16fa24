// SPDX-License-Identifier: Apache-2.0
#include "agent/util/lock_file.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <charconv>
#include <cstdint>
#include <sstream>
#include <tuple>

#include "agent/util/atomic_file.h"
#include "agent/util/clock.h"

namespace kdtree {
namespace {

// The text is the holder's only if that process lives: one that has just taken the lock may not
// have written yet.
// "" = no process that lives.
std::string living_holder(int fd) {
  std::array<char, 512> text{};
  const ssize_t got = ::pread(fd, text.data(), text.size(), 0);
  if (got <= 0) return {};
  std::istringstream words(std::string(text.data(), static_cast<std::size_t>(got)));
  std::string verb, pid, boot, since;
  std::uint64_t ticks = 0;
  words >> verb >> pid >> ticks >> boot >> since;
  pid_t number = 0;
  const auto parsed = std::from_chars(pid.data(), pid.data() + pid.size(), number);
  if (since.empty() || parsed.ec != std::errc{} || boot != boot_id() ||
      process_start_ticks(number) != ticks)
    return {};
  return "kdtreectl " + verb + " (pid " + pid + ", since " + since + ")";
}

}  // namespace

Result<std::string> LockFile::holder(const Root& root) {
  const auto path = root(paths::kRun) / "lock";
  UniqueFd fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY));
  if (!fd && errno == ENOENT) return std::string();
  if (!fd) return tl::make_unexpected(io_error("opening", path, errno));
  return living_holder(fd.get());
}

Result<LockFile> LockFile::acquire(const Root& root, const std::string& verb) {
  const auto path = root(paths::kRun) / "lock";
  KDTREE_TRY(make_directories(path.parent_path()));
  UniqueFd fd(::open(path.c_str(),
                     O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY, 0600));
  if (!fd) return tl::make_unexpected(io_error("opening", path, errno));
  struct stat info {};
  if (::fstat(fd.get(), &info) != 0 || !S_ISREG(info.st_mode))
    return fail(ExitCode::refused, path.string() + " is not a regular file", "remove it");
  std::ignore = ::fchmod(fd.get(), 0600);  // who can open it can lock it
  if (::flock(fd.get(), LOCK_EX | LOCK_NB) != 0) {
    if (errno != EWOULDBLOCK) return tl::make_unexpected(io_error("locking", path, errno));
    const auto who = living_holder(fd.get());
    return fail(ExitCode::locked,
                (who.empty() ? "another kdtreectl" : who) + " is changing this host",
                "wait for it to end; the lock goes with it");
  }
  const pid_t pid = ::getpid();
  const std::string text = verb + " " + std::to_string(pid) + " " +
                           std::to_string(process_start_ticks(pid).value_or(0)) + " " + boot_id() +
                           " " + utc_now() + "\n";
  if (::ftruncate(fd.get(), 0) != 0 ||
      ::pwrite(fd.get(), text.data(), text.size(), 0) != static_cast<ssize_t>(text.size()))
    return tl::make_unexpected(io_error("writing", path, errno));
  return LockFile(std::move(fd));
}

}  // namespace kdtree
