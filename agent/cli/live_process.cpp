// SPDX-License-Identifier: Apache-2.0
#include "agent/cli/live_process.h"

#include <filesystem>
#include <map>
#include <sstream>

#include "agent/util/clock.h"
#include "agent/util/file.h"
#include "agent/util/sha256.h"

namespace kdtree {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kLibrary = "libkdtree_torch.so";

// A process that sets its title (SGLang's ranks do) writes it over its environment and fills up
// with zeros: what is left there says nothing.
bool is_overwritten(std::string_view environ) {
  std::istringstream entries{std::string(environ)};
  for (std::string entry; std::getline(entries, entry, '\0');)
    if (entry.find('=') == std::string::npos) return true;
  return environ.empty();
}

std::map<std::string, std::string> ours_in(std::string_view environ) {
  std::map<std::string, std::string> ours;
  std::istringstream entries{std::string(environ)};
  for (std::string entry; std::getline(entries, entry, '\0');) {
    const auto equals = entry.find('=');
    const auto name = entry.substr(0, equals);
    if (equals != std::string::npos && (name.starts_with("KDTREE_") || name == "PYTHONPATH"))
      ours[name] = entry.substr(equals + 1);
  }
  return ours;
}

// The mapped file whose path holds our library's name, as maps writes it; "" = none.
std::string mapped_library(const std::string& maps) {
  std::istringstream lines(maps);
  for (std::string line; std::getline(lines, line);) {
    const auto slash = line.find('/');
    if (slash != std::string::npos && line.find(kLibrary, slash) != std::string::npos)
      return line.substr(slash);
  }
  return {};
}

}  // namespace

std::string environment_digest(std::string_view environ) {
  std::string text;
  for (const auto& [name, value] : ours_in(environ))
    text.append(name).append("=").append(value).append("\n");
  return sha256_hex(text);
}

std::string live_drift(const Root& root, const RankStats& stats, const std::string& release) {
  const fs::path process = root("/proc/" + std::to_string(stats.pid));
  const auto environ = read_file(process / "environ");
  const auto maps = read_file(process / "maps");
  // A pid that is another process's by now says nothing.
  if (!environ || !maps ||
      process_start_ticks(static_cast<pid_t>(stats.pid), root) != stats.pid_start_ticks)
    return {};
  const std::string library = (fs::path(paths::kReleases) / release / "lib" / kLibrary).string();
  if (!is_overwritten(*environ)) {
    if (!stats.environment_sha256.empty() &&
        environment_digest(*environ) != stats.environment_sha256)
      return "reports another environment than it was started with";
    const auto ours = ours_in(*environ);
    const auto wanted = ours.find("KDTREE_LIB");
    if (wanted == ours.end() || wanted->second != library)
      return "was started with KDTREE_LIB=" + (wanted == ours.end() ? "" : wanted->second) +
             ", not that of release " + release;
  }
  const std::string mapped = mapped_library(*maps);
  if (mapped == library) return {};
  return mapped.empty() ? "has no kernel library mapped"
                        : "has mapped " + mapped + ", not the library of release " + release;
}

}  // namespace kdtree
