// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <filesystem>

namespace kdtree {

// Every path of the host goes through one Root, so that a test or an image can use another tree
// than "/".
class Root {
 public:
  explicit Root(std::filesystem::path prefix = "/") : prefix_(std::move(prefix)) {}

  // The host path `absolute` ("/etc/kdtree") inside this root.
  std::filesystem::path operator()(const std::filesystem::path& absolute) const {
    return prefix_ / absolute.relative_path();
  }
  const std::filesystem::path& prefix() const { return prefix_; }
  bool is_host() const { return prefix_ == "/"; }

 private:
  std::filesystem::path prefix_;
};

// Where things live on a host; always used through a Root.
namespace paths {
inline constexpr const char* kConfig = "/etc/kdtree/kdtree.json";
inline constexpr const char* kReleases = "/opt/kdtree/releases";  // <id>/, immutable
inline constexpr const char* kCurrent =
    "/opt/kdtree/current";  // symlink to releases/<id>, flipped by rename
inline constexpr const char* kState = "/var/lib/kdtree";  // journal/, state.json, audit.jsonl
inline constexpr const char* kRun = "/run/kdtree";        // lock, control, stats/
inline constexpr const char* kControl = "/run/kdtree/control";
inline constexpr const char* kStats = "/run/kdtree/stats";
inline constexpr const char* kShare =
    "/usr/share/kdtree";  // kernel/ and sitecustomize/ sources to build from
inline constexpr const char* kDropInName = "60-kdtree.conf";
}  // namespace paths

}  // namespace kdtree
