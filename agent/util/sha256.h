// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <filesystem>
#include <map>
#include <string>
#include <string_view>

#include "agent/util/result.h"

namespace kdtree {

// 64 lower-case hex digits.
std::string sha256_hex(std::string_view bytes);

// Of a regular file, streamed; a symlink is refused.
Result<std::string> sha256_file(const std::filesystem::path& path);

// Relative path -> digest of every regular file under `dir`, sorted; symlinks inside are refused.
Result<std::map<std::string, std::string>> sha256_tree(const std::filesystem::path& dir);

// One digest over such a map: of "<digest>  <path>\n" for each.
std::string sha256_of_tree(const std::map<std::string, std::string>& digests);

}  // namespace kdtree
