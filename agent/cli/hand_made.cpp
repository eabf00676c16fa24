// SPDX-License-Identifier: Apache-2.0
#include "agent/cli/hand_made.h"

#include <algorithm>
#include <array>
#include <filesystem>
#include <sstream>

#include "agent/plan/engine_unit.h"
#include "agent/util/file.h"

namespace kdtree {
namespace {

namespace fs = std::filesystem;

// A start-up hook that holds one of these reaches into the engine.
constexpr std::array<std::string_view, 5> kReachesIn = {
    "sglang.srt", "extend_attention", "triton_backend", "kdtree_patch", "import kdtree"};
// Where an engine patched in place would call a kernel of ours.
constexpr std::array<std::string_view, 2> kPatched = {
    "sglang/srt/layers/attention/triton_backend.py",
    "sglang/srt/layers/attention/triton_ops/extend_attention.py"};

bool holds_any(const std::string& text, auto marks) {
  return std::ranges::any_of(marks,
                             [&](auto mark) { return text.find(mark) != std::string::npos; });
}

std::string text_of(const Root& root, const fs::path& path) {
  std::error_code error;
  const auto real = fs::canonical(root(path), error);
  if (error) return {};
  return read_file(real).value_or(std::string());
}

// Folders of the effective PYTHONPATH, kdtree's own left out, and the engine's own.
std::vector<fs::path> folders_of(const UnitState& unit, const std::string& site) {
  std::vector<fs::path> folders;
  for (const auto& [name, value] : unit.environment) {
    if (name != "PYTHONPATH") continue;
    std::istringstream parts(value);
    for (std::string part; std::getline(parts, part, ':');)
      if (!part.empty() && !part.starts_with("/opt/kdtree/")) folders.emplace_back(part);
  }
  if (!site.empty()) folders.emplace_back(site);
  return folders;
}

void add_pth_files(const Root& root, const fs::path& site, std::vector<HandMade>& found) {
  std::error_code error;
  for (fs::directory_iterator it(root(site), error), end; !error && it != end;
       it.increment(error)) {
    if (it->path().extension() != ".pth") continue;
    const fs::path path = site / it->path().filename();
    if (holds_any(text_of(root, path), kReachesIn))
      found.push_back({path.string() + " patches the engine when Python starts",
                       "take it away: kdtree does that", true});
  }
}

}  // namespace

std::vector<std::string> other_hooks(const Root& root, const UnitState& unit,
                                     const std::string& site) {
  std::vector<std::string> hooks;
  for (const auto& folder : folders_of(unit, site))
    for (const char* name : {"sitecustomize.py", "usercustomize.py"}) {
      std::error_code error;
      if (fs::exists(root(folder / name), error)) hooks.push_back((folder / name).string());
    }
  return hooks;
}

std::vector<HandMade> find_hand_made(const Root& root, const EngineUnitFacts& unit,
                                     const std::string& site) {
  std::vector<HandMade> found;
  for (const auto& hook : other_hooks(root, unit.state, site))
    if (holds_any(text_of(root, hook), kReachesIn))
      found.push_back({hook + " patches the engine by hand",
                       "take it away, or off the unit's PYTHONPATH: kdtree does that", true});
  if (!site.empty()) {
    for (const auto file : kPatched)
      if (text_of(root, fs::path(site) / file).find("kdtree") != std::string::npos)
        found.push_back({(fs::path(site) / file).string() + " was patched by hand to call kdtree",
                         "install the engine's package again", true});
    add_pth_files(root, site, found);
  }
  for (const auto& file : unit.files) {
    if (is_written_by_kdtree(file.text) || file.text.find("KDTREE_") == std::string::npos) continue;
    found.push_back({file.path + " sets KDTREE_ variables by hand",
                     "kdtree's part of the unit wins over them, and uninstall leaves them in force",
                     false});
  }
  return found;
}

}  // namespace kdtree
