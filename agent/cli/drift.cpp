// SPDX-License-Identifier: Apache-2.0
#include "agent/cli/drift.h"

#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <map>
#include <set>

#include "agent/cli/live_process.h"
#include "agent/gate/unit_journal.h"
#include "agent/unitfile/environment.h"
#include "agent/util/file.h"
#include "agent/util/sha256.h"

namespace kdtree {
namespace {

namespace fs = std::filesystem;
using Lines = std::vector<DriftLine>;

constexpr std::size_t kNameShown = 100;  // of a file that somebody else named

std::string redo(const State& state) {
  const std::string mode =
      std::string(to_string(state.current.mode)) + (state.current.cold ? " --cold" : "");
  return "kdtreectl mode " + mode + " writes it again; kdtreectl plan mode " + mode +
         " says first whether that restarts the engine";
}

void compare_files(const Root& root, const State& state, Lines& lines) {
  for (const auto& [path, digest] : state.managed) {
    std::error_code error;
    auto status = fs::symlink_status(root(path), error);
    if (!fs::exists(status)) {
      lines.push_back({"file", path + " is gone", redo(state)});
      continue;
    }
    if (access(root(path).c_str(), R_OK) != 0) continue;
    auto now = sha256_file(root(path));
    if (!now)
      lines.push_back({"file", path + ": " + now.error().what, redo(state)});
    else if (*now != digest)
      lines.push_back({"file", path + " was changed by somebody else", redo(state)});
  }
  if (state.current.none()) return;
  std::error_code error;
  auto target = fs::read_symlink(root(paths::kCurrent), error);
  if (error || target.filename() != state.current.release)
    lines.push_back({"link",
                     std::string(paths::kCurrent) +
                         (error ? " is missing" : " points to " + target.string()) + ", not to " +
                         state.current.release,
                     redo(state)});
}

void compare_unit(const DriftFacts& facts, Lines& lines) {
  const auto& unit = facts.unit;
  if (unit.need_daemon_reload)
    lines.push_back({"reload", unit.name + ": its files are newer than what systemd has loaded",
                     "systemctl daemon-reload"});
  if (!unit.is_active())
    lines.push_back({"unit", unit.name + " is " + unit.active_state, "journalctl -u " + unit.name});
}

// What a variable would be at the next start, and the EnvironmentFile that says so; "" = the unit.
struct Variable {
  std::string value;
  std::string by;
};
using Variables = std::map<std::string, Variable>;

// As systemd composes it: EnvironmentFile= beats Environment=. Where one of the files may not be
// read, nothing is said of any: it may be ours, which puts right what the others set.
Variables next_environment(const Root& root, const UnitState& unit) {
  Variables of_unit;
  for (const auto& [name, value] : unit.environment) of_unit[name] = {value, ""};
  Variables all = of_unit;
  for (const auto& named : unit.environment_files)
    for (const auto& path : environment_file_paths(root, named.path)) {
      const auto text = read_file(root(path));
      if (!text) return of_unit;
      for (const auto& [name, value] : parse_environment_file(*text)) all[name] = {value, path};
    }
  return all;
}

void compare_environment(const Root& root, const DriftFacts& facts, Lines& lines) {
  const auto& current = facts.state.current;
  const auto variables = next_environment(root, facts.unit);
  const auto expect = [&](const std::string& name, const std::string& wanted, const auto& holds) {
    const auto found = variables.find(name);
    const Variable is = found == variables.end() ? Variable{"unset", ""} : found->second;
    if (holds(is.value)) return;
    lines.push_back({"environment",
                     name + " of " + facts.unit.name + " is " + is.value +
                         (is.by.empty() ? "" : " by " + is.by) + ", not " + wanted,
                     "look for a later " +
                         std::string(is.by.empty() ? "drop-in" : "EnvironmentFile=") +
                         ": systemctl cat " + facts.unit.name});
  };
  const std::string mode = current.cold ? "unset" : std::string(to_string(current.mode));
  expect("KDTREE_VERIFY", mode, [&](const std::string& value) { return value == mode; });
  if (current.cold) return;
  const std::string release = std::string(paths::kReleases) + "/" + current.release;
  expect("KDTREE_LIB", "in " + release,
         [&](const std::string& value) { return value.starts_with(release + "/"); });
  const std::string python = release + "/python";
  expect("PYTHONPATH", python + " first",
         [&](const std::string& value) { return value.substr(0, value.find(':')) == python; });
}

void compare_control(const DriftFacts& facts, Lines& lines) {
  const auto& current = facts.state.current;
  if (!facts.control || current.cold) return;
  if (facts.control->mode != current.mode)
    lines.push_back({"control",
                     std::string(paths::kControl) + " says " +
                         std::string(to_string(facts.control->mode)) + ", not " +
                         std::string(to_string(current.mode)),
                     redo(facts.state)});
}

std::string rank_drift(const RankView& view, const DriftFacts& facts) {
  if (!view.stats) return view.missing;
  const RankStats& stats = *view.stats;
  const auto& current = facts.state.current;
  if (stats.patch_state != PatchState::active)
    return std::string(patch_state_name(stats.patch_state)) +
           (stats.reason.empty() ? "" : ": " + stats.reason);
  if (stats.release_id != current.release) return "runs release " + stats.release_id;
  if (stats.mode != current.mode) return "is in mode " + std::string(to_string(stats.mode));
  if (!facts.release) return {};
  const auto library = facts.release->files.find("lib/libkdtree_torch.so");
  if (library != facts.release->files.end() && !stats.library_sha256.empty() &&
      stats.library_sha256 != library->second)
    return "has loaded another kernel library than that of its release";
  return {};
}

// A line for each thing that an engine process runs on and the release was not made for.
void compare_engine(const DriftFacts& facts, Lines& lines) {
  if (!facts.release) return;
  std::set<std::string> found;
  const auto look = [&](const RankStats& stats) {
    for (auto& difference : not_made_for(
             *facts.release,
             {stats.engine_version, stats.engine_fingerprint, stats.torch_version, "", ""}))
      found.insert(std::move(difference));
  };
  for (const auto& view : facts.ranks.ranks)
    if (view.stats) look(*view.stats);
  for (const auto& other : facts.ranks.others) look(other);
  for (const auto& difference : found)
    lines.push_back({"engine", "it runs " + difference, kUpgrade});
}

void compare_ranks(const DriftFacts& facts, Lines& lines) {
  for (const auto& view : facts.ranks.ranks)
    if (auto text = rank_drift(view, facts); !text.empty())
      lines.push_back({"rank", "rank " + std::to_string(view.rank) + ": " + text, ""});
  for (const auto& other : facts.ranks.others)
    if (other.patch_state == PatchState::refused)
      lines.push_back({"rank",
                       "process " + std::to_string(other.pid) +
                           ", which is no rank (yet), refused: " + other.reason,
                       ""});
  for (const auto& conflict : facts.ranks.conflicts) lines.push_back({"rank", conflict, ""});
  for (const auto& file : facts.ranks.unreadable)
    lines.push_back({"rank",
                     printable(file.path.filename().string(), kNameShown) + " in " + paths::kStats +
                         " is " + std::string(outcome_name(file.outcome)) +
                         (file.detail.empty() ? "" : ": " + file.detail),
                     ""});
}

}  // namespace

std::vector<DriftLine> find_drift(const Root& root, const DriftFacts& facts) {
  Lines lines;
  if (facts.cut_off)
    lines.push_back({"cut-off", "a change was cut off in the middle",
                     "kdtreectl recover finishes or undoes it"});
  else if (facts.state.trial)
    lines.push_back({"trial", describe(facts.state.current) + " has not passed its gate yet",
                     "kdtreectl recover"});
  compare_files(root, facts.state, lines);
  if (facts.state.current.none()) return lines;
  compare_unit(facts, lines);
  compare_environment(root, facts, lines);
  compare_control(facts, lines);
  if (facts.state.current.cold) return lines;
  compare_engine(facts, lines);
  compare_ranks(facts, lines);
  if (!facts.live) return lines;
  for (const auto& view : facts.ranks.ranks)
    if (view.stats && view.stats->patch_state == PatchState::active)
      if (auto text = live_drift(root, *view.stats, facts.state.current.release); !text.empty())
        lines.push_back({"process", "rank " + std::to_string(view.rank) + ": " + text,
                         "systemctl restart " + facts.unit.name});
  return lines;
}

}  // namespace kdtree
