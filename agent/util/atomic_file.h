// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <filesystem>
#include <string_view>

#include "agent/util/file.h"
#include "agent/util/result.h"

// Changing files so that a power cut leaves the old or the new content, never a part: temp file in
// the same directory (O_EXCL, O_NOFOLLOW), fsync, rename, fsync of the directory.
namespace kdtree {

// Creates or replaces `path`. Its directory must exist. Errors: refused; `path` is then as it was.
Status write_file_atomic(const std::filesystem::path& path, std::string_view bytes,
                         const FileAttributes& attributes);

// The same with root (or, where not root, the caller) as owner and `mode`.
Status write_file_atomic(const std::filesystem::path& path, std::string_view bytes,
                         mode_t mode = 0644);

// Makes `link` a symlink to `target`, replacing a symlink or file by rename.
Status replace_symlink(const std::filesystem::path& link, const std::filesystem::path& target);

// Puts a file or symlink back as `image` has it.
Status restore_image(const std::filesystem::path& path, const FileImage& image);

// Removes a file or symlink; nothing there is fine.
Status remove_file(const std::filesystem::path& path);

// Creates a directory and its parents (mode 0755 each, whatever the umask), durably. Existing ones
// keep their mode; a symlink in the place of `dir` itself is refused.
Status make_directories(const std::filesystem::path& dir, mode_t mode = 0755);

// Moves a file or directory within one filesystem, durably. Refused where `to` exists.
Status move_durably(const std::filesystem::path& from, const std::filesystem::path& to);

// As move_durably where `to` doesn't exist; else the two change places in one step (or, where the
// filesystem can't, what was at `to` is moved to `from`'s folder as ".replaced-<name>" first).
Status exchange_durably(const std::filesystem::path& from, const std::filesystem::path& to);

// fsync of every regular file and directory under `dir`; symlinks are not followed.
Status sync_tree(const std::filesystem::path& dir);

Status sync_directory(const std::filesystem::path& dir);

}  // namespace kdtree
