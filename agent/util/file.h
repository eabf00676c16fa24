// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <string_view>

#include "agent/util/result.h"

// Reading regular files whose place others may be able to write: no symlink as the last component,
// never blocking on a FIFO or a device, never more than a stated number of bytes.
namespace kdtree {

inline constexpr std::size_t kMaxFileBytes = 16u << 20;

struct FileAttributes {
  mode_t mode = 0644;  // permission bits only
  uid_t uid = 0;
  gid_t gid = 0;
  // Extended attributes, ACLs among them: name -> value, bytes.
  std::map<std::string, std::string> xattrs = {};
  bool operator==(const FileAttributes&) const = default;
};

// What a path held: a regular file (bytes, attributes) or a symlink (target).
struct FileImage {
  std::string bytes;
  FileAttributes attributes;
  std::string symlink_target;  // not empty: a symlink, and bytes and attributes mean nothing
  bool operator==(const FileImage&) const = default;
};

// Errors: refused, with the path: missing, not a regular file, larger than max_bytes, unreadable.
Result<std::string> read_file(const std::filesystem::path& path,
                              std::size_t max_bytes = kMaxFileBytes);

// As read_file; nullopt where nothing is at `path`.
Result<std::optional<std::string>> read_file_if_there(const std::filesystem::path& path,
                                                      std::size_t max_bytes = kMaxFileBytes);

// The file or symlink at `path`, whole; nullopt where nothing is there; refused for any other kind
// of thing.
Result<std::optional<FileImage>> read_image(const std::filesystem::path& path,
                                            std::size_t max_bytes = kMaxFileBytes);

// Refused unless `path` is owned by root (or by the caller, for tests) and not writable by group or
// others.
Status check_only_root_writes(const std::filesystem::path& path);

// Bytes that an unprivileged writer could still store on the filesystem of `path` or of its nearest
// existing parent.
Result<std::uintmax_t> free_bytes(const std::filesystem::path& path);

// "reading /etc/x: Permission denied" as an Error from errno `number`; ENOSPC gets a hint.
Error io_error(std::string_view doing, const std::filesystem::path& path, int number);

}  // namespace kdtree
