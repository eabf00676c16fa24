// SPDX-License-Identifier: Apache-2.0
#include "agent/util/leftovers.h"

#include <algorithm>
#include <string>
#include <tuple>
#include <vector>

#include "agent/util/atomic_file.h"

namespace kdtree {
namespace {

namespace fs = std::filesystem;

constexpr const char* kUnits = "/etc/systemd/system";
constexpr const char* kEvidence = "/var/lib/kdtree/evidence";

// ".<name>.kdtree-<pid>", as atomic_file.cpp names them.
bool is_temp(const std::string& name) {
  constexpr std::string_view kMark = ".kdtree-";
  const auto mark = name.rfind(kMark);
  if (name.empty() || name[0] != '.' || mark == std::string::npos || mark < 2) return false;
  const auto pid = std::string_view(name).substr(mark + kMark.size());
  return !pid.empty() && pid.find_first_not_of("0123456789") == std::string_view::npos;
}

std::vector<fs::path> in(const fs::path& folder) {
  std::vector<fs::path> found;
  std::error_code error;
  for (fs::directory_iterator it(folder, error), end; !error && it != end; it.increment(error))
    found.push_back(it->path());
  return found;
}

void remove_temps(const fs::path& folder) {
  for (const auto& path : in(folder))
    if (is_temp(path.filename().string())) std::ignore = remove_file(path);
}

}  // namespace

void remove_leftovers(const Root& root) {
  for (const char* folder :
       {paths::kState, kEvidence, paths::kRun, "/opt/kdtree", "/etc/kdtree", kUnits})
    remove_temps(root(folder));
  std::error_code error;
  for (const auto& path : in(root(kUnits)))
    if (path.extension() == ".d" && fs::is_directory(fs::symlink_status(path, error)))
      remove_temps(path);
  for (const auto& path : in(root(paths::kReleases)))
    if (path.filename().string().starts_with(".staging-") && fs::remove_all(path, error) > 0)
      std::ignore = sync_directory(path.parent_path());
}

}  // namespace kdtree
