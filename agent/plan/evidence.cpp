// SPDX-License-Identifier: Apache-2.0
#include "agent/plan/evidence.h"

#include <algorithm>
#include <filesystem>
#include <vector>

#include "agent/util/atomic_file.h"

namespace kdtree {
namespace {

namespace fs = std::filesystem;

const fs::path kFolder = fs::path(paths::kState) / "evidence";

}  // namespace

Result<std::string> write_evidence(const Root& root, const std::string& name, std::string_view text,
                                   std::size_t kept) {
  const fs::path path = kFolder / (name + ".txt");
  KDTREE_TRY(make_directories(root(paths::kState)));
  KDTREE_TRY(make_directories(root(kFolder), 0750));
  KDTREE_TRY(write_file_atomic(root(path), text, 0640));
  std::vector<fs::path> all;
  std::error_code error;
  for (fs::directory_iterator it(root(kFolder), error), end; !error && it != end;
       it.increment(error))
    all.push_back(it->path());
  std::sort(all.begin(), all.end());  // names begin with the time
  for (std::size_t i = 0; i + kept < all.size(); ++i) KDTREE_TRY(remove_file(all[i]));
  return path.string();
}

Result<std::optional<std::string>> read_evidence(const Root& root, const std::string& path) {
  if (fs::path(path).parent_path() != kFolder)
    return fail(ExitCode::refused, path + " is not in " + kFolder.string());
  return read_file_if_there(root(path), 4u << 20);
}

}  // namespace kdtree
