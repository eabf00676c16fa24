// SPDX-License-Identifier: Apache-2.0
#include "agent/util/take_tree.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <memory>
#include <string>
#include <string_view>

#include "agent/util/file.h"
#include "agent/util/unique_fd.h"

namespace kdtree {
namespace {

namespace fs = std::filesystem;

struct DirCloser {
  void operator()(DIR* dir) const { ::closedir(dir); }
};

tl::unexpected<Error> not_plain(const fs::path& path) {
  return fail(ExitCode::refused, path.string() + " is not a plain file or folder");
}

Status copy_bytes(int from, int to, const fs::path& path) {
  std::array<char, 1 << 16> buffer{};
  while (true) {
    const ssize_t got = ::read(from, buffer.data(), buffer.size());
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return tl::make_unexpected(io_error("reading", path, errno));
    if (got == 0) return {};
    std::string_view left(buffer.data(), static_cast<std::size_t>(got));
    while (!left.empty()) {
      const ssize_t done = ::write(to, left.data(), left.size());
      if (done < 0 && errno == EINTR) continue;
      if (done < 0) return tl::make_unexpected(io_error("copying", path, errno));
      left.remove_prefix(static_cast<std::size_t>(done));
    }
  }
}

Status copy_file(int dir, const char* name, const fs::path& from, const fs::path& to) {
  const UniqueFd in(::openat(dir, name, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY | O_CLOEXEC));
  struct stat about {};
  if (!in || ::fstat(in.get(), &about) != 0)
    return tl::make_unexpected(io_error("opening", from, errno));
  if (!S_ISREG(about.st_mode) || about.st_nlink != 1) return not_plain(from);
  const UniqueFd out(
      ::open(to.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600));
  if (!out) return tl::make_unexpected(io_error("creating", to, errno));
  KDTREE_TRY(copy_bytes(in.get(), out.get(), from));
  if (::fchmod(out.get(), (about.st_mode & S_IXUSR) != 0 ? 0755 : 0644) != 0)
    return tl::make_unexpected(io_error("setting the mode of", to, errno));
  return {};
}

Status take_folder(UniqueFd folder, const fs::path& from, const fs::path& to) {
  if (::fchown(folder.get(), ::geteuid(), ::getegid()) != 0 || ::fchmod(folder.get(), 0700) != 0)
    return tl::make_unexpected(io_error("taking", from, errno));
  if (::mkdir(to.c_str(), 0700) != 0 || ::chmod(to.c_str(), 0755) != 0)
    return tl::make_unexpected(io_error("creating", to, errno));
  const int fd = folder.get();
  std::unique_ptr<DIR, DirCloser> entries(::fdopendir(::dup(fd)));
  if (!entries) return tl::make_unexpected(io_error("listing", from, errno));
  while (const dirent* entry = ::readdir(entries.get())) {
    const std::string name = entry->d_name;
    if (name == "." || name == "..") continue;
    struct stat about {};
    if (::fstatat(fd, name.c_str(), &about, AT_SYMLINK_NOFOLLOW) != 0)
      return tl::make_unexpected(io_error("looking at", from / name, errno));
    if (!S_ISDIR(about.st_mode)) {
      KDTREE_TRY(copy_file(fd, name.c_str(), from / name, to / name));
      continue;
    }
    UniqueFd below(::openat(fd, name.c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC));
    if (!below) return tl::make_unexpected(io_error("opening", from / name, errno));
    KDTREE_TRY(take_folder(std::move(below), from / name, to / name));
  }
  return {};
}

}  // namespace

Status take_tree(const fs::path& from, const fs::path& to) {
  UniqueFd top(::open(from.c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC));
  if (!top) return tl::make_unexpected(io_error("opening", from, errno));
  return take_folder(std::move(top), from, to);
}

}  // namespace kdtree
