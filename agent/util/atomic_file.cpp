// SPDX-License-Identifier: Apache-2.0
#include "agent/util/atomic_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <sys/xattr.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <tuple>
#include <vector>

#include "agent/util/unique_fd.h"

namespace kdtree {
namespace fs = std::filesystem;
namespace {

// Hidden, so that nothing that lists "*.conf" ever reads a half-written one; the same name each
// time for a given process, so that a crash leaves at most one behind.
fs::path temp_name(const fs::path& path) {
  return path.parent_path() /
         ("." + path.filename().string() + ".kdtree-" + std::to_string(::getpid()));
}

Status write_all(int fd, std::string_view bytes, const fs::path& path) {
  while (!bytes.empty()) {
    const ssize_t done = ::write(fd, bytes.data(), bytes.size());
    if (done < 0 && errno == EINTR) continue;
    if (done < 0) return tl::make_unexpected(io_error("writing", path, errno));
    bytes.remove_prefix(static_cast<std::size_t>(done));
  }
  return {};
}

// Labels that the kernel gives by its policy, and that not every root may set.
bool is_the_systems(const std::string& xattr) {
  return (errno == EPERM || errno == ENOTSUP) &&
         (xattr.starts_with("security.") || xattr.starts_with("trusted."));
}

Status write_temp(const fs::path& temp, const fs::path& path, std::string_view bytes,
                  const FileAttributes& attributes) {
  ::unlink(temp.c_str());
  UniqueFd fd(
      ::open(temp.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC | O_NOCTTY, 0600));
  if (!fd) return tl::make_unexpected(io_error("creating a file beside", path, errno));
  KDTREE_TRY(write_all(fd.get(), bytes, path));
  const bool foreign_owner = attributes.uid != ::geteuid() || attributes.gid != ::getegid();
  if (foreign_owner && ::fchown(fd.get(), attributes.uid, attributes.gid) != 0)
    return tl::make_unexpected(io_error("setting the owner of", path, errno));
  if (::fchmod(fd.get(), attributes.mode & 07777) != 0)
    return tl::make_unexpected(io_error("setting the mode of", path, errno));
  for (const auto& [name, value] : attributes.xattrs)
    if (::fsetxattr(fd.get(), name.c_str(), value.data(), value.size(), 0) != 0 &&
        !is_the_systems(name))
      return tl::make_unexpected(io_error("setting the attribute " + name + " of", path, errno));
  if (::fsync(fd.get()) != 0) return tl::make_unexpected(io_error("syncing", path, errno));
  return {};
}

Status rename_and_sync(const fs::path& temp, const fs::path& path) {
  if (::rename(temp.c_str(), path.c_str()) != 0)
    return tl::make_unexpected(io_error("replacing", path, errno));
  return sync_directory(path.parent_path());
}

Status sync_path(const fs::path& path, int flags) {
  UniqueFd fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW | flags));
  if (!fd) return tl::make_unexpected(io_error("opening", path, errno));
  if (::fsync(fd.get()) != 0) return tl::make_unexpected(io_error("syncing", path, errno));
  return {};
}

}  // namespace

Status write_file_atomic(const fs::path& path, std::string_view bytes,
                         const FileAttributes& attributes) {
  const fs::path temp = temp_name(path);
  if (auto written = write_temp(temp, path, bytes, attributes); !written) {
    ::unlink(temp.c_str());
    return written;
  }
  auto renamed = rename_and_sync(temp, path);
  if (!renamed) ::unlink(temp.c_str());
  return renamed;
}

Status write_file_atomic(const fs::path& path, std::string_view bytes, mode_t mode) {
  return write_file_atomic(path, bytes, {mode, ::geteuid(), ::getegid(), {}});
}

Status replace_symlink(const fs::path& link, const fs::path& target) {
  const fs::path temp = temp_name(link);
  ::unlink(temp.c_str());
  if (::symlink(target.c_str(), temp.c_str()) != 0)
    return tl::make_unexpected(io_error("creating a symlink beside", link, errno));
  auto renamed = rename_and_sync(temp, link);
  if (!renamed) ::unlink(temp.c_str());
  return renamed;
}

Status restore_image(const fs::path& path, const FileImage& image) {
  if (!image.symlink_target.empty()) return replace_symlink(path, image.symlink_target);
  return write_file_atomic(path, image.bytes, image.attributes);
}

Status remove_file(const fs::path& path) {
  if (::unlink(path.c_str()) != 0) {
    if (errno == ENOENT || errno == ENOTDIR) return {};
    return tl::make_unexpected(io_error("removing", path, errno));
  }
  return sync_directory(path.parent_path());
}

Status make_directories(const fs::path& dir, mode_t mode) {
  struct stat info {};
  if (::lstat(dir.c_str(), &info) == 0) {
    if (S_ISDIR(info.st_mode)) return {};
    return fail(ExitCode::refused, dir.string() + " is in the way: not a directory",
                "move it away and try again");
  }
  if (errno != ENOENT) return tl::make_unexpected(io_error("looking at", dir, errno));
  const fs::path parent = dir.parent_path();
  // The parent may be a symlink that the system has there (/var/run): only the last component is
  // ours.
  if (::stat(parent.c_str(), &info) != 0) KDTREE_TRY(make_directories(parent));
  if (::mkdir(dir.c_str(), 0700) != 0 && errno != EEXIST)
    return tl::make_unexpected(io_error("creating", dir, errno));
  if (::chmod(dir.c_str(), mode) != 0)
    return tl::make_unexpected(io_error("setting the mode of", dir, errno));
  return sync_directory(parent);
}

Status move_durably(const fs::path& from, const fs::path& to) {
  if (::renameat2(AT_FDCWD, from.c_str(), AT_FDCWD, to.c_str(), RENAME_NOREPLACE) != 0)
    return tl::make_unexpected(io_error("moving " + from.string() + " to", to, errno));
  KDTREE_TRY(sync_directory(to.parent_path()));
  if (from.parent_path() != to.parent_path()) KDTREE_TRY(sync_directory(from.parent_path()));
  return {};
}

Status exchange_durably(const fs::path& from, const fs::path& to) {
  struct stat about {};
  if (::lstat(to.c_str(), &about) != 0 && errno == ENOENT) return move_durably(from, to);
  if (::renameat2(AT_FDCWD, from.c_str(), AT_FDCWD, to.c_str(), RENAME_EXCHANGE) != 0) {
    if (errno != EINVAL && errno != EXDEV && errno != ENOSYS)
      return tl::make_unexpected(io_error("exchanging " + from.string() + " with", to, errno));
    const fs::path aside = from.parent_path() / (".replaced-" + to.filename().string());
    KDTREE_TRY(move_durably(to, aside));
    auto moved = move_durably(from, to);
    if (!moved) std::ignore = move_durably(aside, to);
    return moved;
  }
  KDTREE_TRY(sync_directory(to.parent_path()));
  if (from.parent_path() != to.parent_path()) KDTREE_TRY(sync_directory(from.parent_path()));
  return {};
}

Status sync_tree(const fs::path& dir) {
  std::error_code error;
  std::vector<fs::path> directories{dir};
  auto entry = fs::recursive_directory_iterator(dir, error);
  for (; !error && entry != fs::recursive_directory_iterator(); entry.increment(error)) {
    const fs::file_status status = entry->symlink_status(error);
    if (fs::is_directory(status)) directories.push_back(entry->path());
    if (fs::is_regular_file(status)) KDTREE_TRY(sync_path(entry->path(), O_NONBLOCK));
  }
  if (error) return tl::make_unexpected(io_error("walking", dir, error.value()));
  for (const auto& each : directories) KDTREE_TRY(sync_directory(each));
  return {};
}

Status sync_directory(const fs::path& dir) {
  UniqueFd fd(::open(dir.c_str(), O_RDONLY | O_CLOEXEC | O_DIRECTORY));
  if (!fd) return tl::make_unexpected(io_error("opening", dir, errno));
  if (::fsync(fd.get()) != 0) return tl::make_unexpected(io_error("syncing", dir, errno));
  return {};
}

}  // namespace kdtree
