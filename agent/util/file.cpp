// SPDX-License-Identifier: Apache-2.0
#include "agent/util/file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/xattr.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "agent/util/unique_fd.h"

namespace kdtree {
namespace {

constexpr std::size_t kMaxXattrBytes = 64u << 10;  // the kernel's own limit

Result<std::string> read_open_file(int fd, const std::filesystem::path& path,
                                   std::size_t max_bytes) {
  std::string bytes;
  char buffer[1 << 16];
  while (true) {
    const ssize_t got = ::read(fd, buffer, sizeof buffer);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return tl::make_unexpected(io_error("reading", path, errno));
    if (got == 0) return bytes;
    if (bytes.size() + static_cast<std::size_t>(got) > max_bytes)
      return fail(ExitCode::refused,
                  path.string() + " is larger than " + std::to_string(max_bytes) + " bytes");
    bytes.append(buffer, static_cast<std::size_t>(got));
  }
}

struct OpenFile {
  UniqueFd fd;
  struct stat info {};
};

Result<std::optional<OpenFile>> open_regular(const std::filesystem::path& path) {
  OpenFile file;
  file.fd =
      UniqueFd(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY));
  if (!file.fd && (errno == ENOENT || errno == ENOTDIR)) return std::nullopt;
  if (!file.fd && errno == ELOOP)
    return fail(ExitCode::refused, path.string() + " is a symlink where a file is expected");
  if (!file.fd) return tl::make_unexpected(io_error("opening", path, errno));
  if (::fstat(file.fd.get(), &file.info) != 0)
    return tl::make_unexpected(io_error("looking at", path, errno));
  if (!S_ISREG(file.info.st_mode))
    return fail(ExitCode::refused, path.string() + " is not a regular file");
  return file;
}

// A filesystem without them has none.
Result<std::map<std::string, std::string>> read_xattrs(int fd, const std::filesystem::path& path) {
  std::map<std::string, std::string> found;
  const auto wrong = [&] {
    return tl::make_unexpected(io_error("reading the attributes of", path, errno));
  };
  const ssize_t size = ::flistxattr(fd, nullptr, 0);
  if (size < 0 && errno == ENOTSUP) return found;
  if (size < 0) return wrong();
  std::string names(static_cast<std::size_t>(size), '\0');
  const ssize_t listed = ::flistxattr(fd, names.data(), names.size());
  if (listed < 0) return wrong();
  names.resize(static_cast<std::size_t>(listed));
  for (std::size_t at = 0; at < names.size();) {
    const std::string name = names.c_str() + at;
    at += name.size() + 1;
    std::string value(kMaxXattrBytes, '\0');
    const ssize_t got = ::fgetxattr(fd, name.c_str(), value.data(), value.size());
    if (got < 0 && errno == ENODATA) continue;
    if (got < 0) return wrong();
    value.resize(static_cast<std::size_t>(got));
    found[name] = std::move(value);
  }
  return found;
}

}  // namespace

Error io_error(std::string_view doing, const std::filesystem::path& path, int number) {
  Error error{ExitCode::refused,
              std::string(doing) + " " + path.string() + ": " + std::strerror(number),
              {}};
  if (number == ENOSPC || number == EDQUOT)
    error.hint = "free space on that filesystem and try again";
  if (number == EACCES || number == EPERM) error.hint = "run as root";
  if (number == EROFS) error.hint = "that filesystem is mounted read-only";
  return error;
}

Result<std::optional<std::string>> read_file_if_there(const std::filesystem::path& path,
                                                      std::size_t max_bytes) {
  KDTREE_TRY_ASSIGN(auto file, open_regular(path));
  if (!file) return std::nullopt;
  KDTREE_TRY_ASSIGN(auto bytes, read_open_file(file->fd.get(), path, max_bytes));
  return bytes;
}

Result<std::string> read_file(const std::filesystem::path& path, std::size_t max_bytes) {
  KDTREE_TRY_ASSIGN(auto bytes, read_file_if_there(path, max_bytes));
  if (!bytes) return tl::make_unexpected(io_error("opening", path, ENOENT));
  return std::move(*bytes);
}

Result<std::optional<FileImage>> read_image(const std::filesystem::path& path,
                                            std::size_t max_bytes) {
  std::error_code ignored;
  FileImage image;
  if (std::filesystem::is_symlink(std::filesystem::symlink_status(path, ignored))) {
    std::error_code error;
    image.symlink_target = std::filesystem::read_symlink(path, error).string();
    if (error) return tl::make_unexpected(io_error("reading", path, error.value()));
    return image;
  }
  KDTREE_TRY_ASSIGN(auto file, open_regular(path));
  if (!file) return std::nullopt;
  KDTREE_TRY_ASSIGN(image.bytes, read_open_file(file->fd.get(), path, max_bytes));
  image.attributes = {file->info.st_mode & 07777, file->info.st_uid, file->info.st_gid};
  KDTREE_TRY_ASSIGN(image.attributes.xattrs, read_xattrs(file->fd.get(), path));
  return image;
}

Status check_only_root_writes(const std::filesystem::path& path) {
  struct stat info {};
  if (::lstat(path.c_str(), &info) != 0)
    return tl::make_unexpected(io_error("looking at", path, errno));
  if (info.st_uid != 0 && info.st_uid != ::geteuid())
    return fail(ExitCode::refused, path.string() + " is not owned by root",
                "chown root " + path.string());
  if ((info.st_mode & (S_IWGRP | S_IWOTH)) != 0)
    return fail(ExitCode::refused, path.string() + " can be written by group or others",
                "chmod go-w " + path.string());
  return {};
}

Result<std::uintmax_t> free_bytes(const std::filesystem::path& path) {
  std::filesystem::path at = path;
  struct statvfs info {};
  while (::statvfs(at.c_str(), &info) != 0) {
    if (errno != ENOENT || at == at.parent_path())
      return tl::make_unexpected(io_error("asking for free space of", at, errno));
    at = at.parent_path();
  }
  return static_cast<std::uintmax_t>(info.f_bavail) * info.f_frsize;
}

}  // namespace kdtree
