// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <cstdint>
#include <map>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <vector>

#include "agent/util/mode.h"
#include "agent/util/result.h"
#include "agent/util/root.h"

// /var/lib/kdtree/state.json: what is deployed and what was good, as kdtreectl left it. Changed
// only inside a transaction.
namespace kdtree {

inline constexpr int kStateFormat = 1;

// What a host can be put in: a release in a mode, or nothing of kdtree (release "").
struct Deployed {
  std::string release;
  Mode mode = Mode::off;
  bool cold = false;  // the engine was started without the patch (mode --cold)
  // Whose command line the engine has, where that isn't `mode`'s own: validate with that of on, so
  // that the processes that compare are those that will answer.
  std::optional<Mode> line = std::nullopt;
  Mode command_line() const { return line.value_or(mode); }
  bool none() const { return release.empty(); }
  bool operator==(const Deployed&) const = default;
};

struct HistoryEntry {
  std::string time;  // UTC
  std::string verb;  // "deploy", "mode", ...
  std::string from;  // "none", "0.1.0-abc off"
  std::string to;
  std::string result;    // "good", "rolled back", "rollback failed", "recovered"
  std::string reason;    // why it was rolled back; "" if good
  std::string plan;      // hash
  std::string user;      // who asked: SUDO_USER, or the login name
  bool forced = false;   // `mode on --force`
  std::string evidence;  // file with the diff and the engine's last lines; "" = none kept
};

// The engine's unit as it was before kdtree: what uninstall gives back, kept for the eye and for
// comparison.
struct UnitBefore {
  std::string unit;
  std::string exec_start;  // the raw ExecStart= value
  std::string digest;      // sha256 of the fragment's text
};

struct State {
  Deployed current;  // in force; while `trial` is set: being tried
  std::optional<Deployed>
      good;  // last known good: what `rollback` and undo go back to; nullopt = never any
  std::optional<Deployed>
      before;  // the good one before `good`: what `rollback` goes to when `current` is `good`
  bool trial = false;  // a change has not passed its gate yet
  std::map<std::string, std::string>
      accepted_engines;  // fingerprint -> UTC time of `--accept-engine`
  std::optional<UnitBefore> unit_before;
  std::map<std::string, std::string>
      managed;  // path -> sha256 of each file as kdtree wrote it: drift is a difference
  std::optional<std::chrono::milliseconds> last_start;  // from the restart to the open gate
  // Config::document that the last change went by: what a way back needs where the file is lost or
  // broken; nullopt = nothing is deployed, or an older kdtreectl wrote this.
  std::optional<std::string> configuration;
  std::vector<HistoryEntry> history;  // oldest first, at most kHistoryKept
};

inline constexpr std::size_t kHistoryKept = 200;

// "none", "0.1.0-abc off", "0.1.0-abc off (cold)", "0.1.0-abc validate (command line of on)"
std::string describe(const Deployed& deployed);

nlohmann::ordered_json to_json(const Deployed& deployed);
// Throws json::exception where it isn't one.
Deployed deployed_of(const nlohmann::json& value);

nlohmann::ordered_json to_json(const HistoryEntry& entry);
nlohmann::ordered_json to_json(const State& state);
Result<State> parse_state(std::string_view text, const std::string& where);

// A host without the file has an empty State. Errors: refused: damaged, or of a newer format.
Result<State> read_state(const Root& root);
Status write_state(const Root& root, const State& state);

// Appends one line to /var/lib/kdtree/audit.jsonl: the entry, and the command line and uid of who
// asked. Durable.
Status append_audit(const Root& root, const HistoryEntry& entry,
                    const std::vector<std::string>& argv);

}  // namespace kdtree
