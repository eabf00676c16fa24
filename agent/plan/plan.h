// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <vector>

#include "agent/config/config.h"
#include "agent/plan/facts.h"
#include "agent/plan/state.h"
#include "agent/util/file.h"
#include "agent/util/result.h"

// From facts and a wish to a plan: a value that can be shown, hashed and compared before anything
// is touched.
namespace kdtree {

enum class Verb { deploy, mode, rollback, uninstall };
std::string_view verb_name(Verb verb);

struct Wish {
  Verb verb = Verb::mode;
  Deployed target;             // release "" = kdtree is to be absent
  bool restart = false;        // restart the engine even where a live switch would do
  bool forced = false;         // an operator's override is part of this (kept in history)
  bool keep_releases = false;  // uninstall: leave /opt/kdtree/releases
  std::string accept_engine;   // fingerprint that the operator accepts with this change; "" = none
};

enum class StepKind {
  write_file,     // path, after (before: what is there now)
  remove_file,    // path (before: what is there now)
  set_symlink,    // path, after.symlink_target
  write_control,  // mode, release: the next generation of the control file
  daemon_reload,  //
  restart_unit,   // unit
  start_unit,     // unit; not undone
  stop_unit,      // unit; undone by a start
  enable_unit,    // unit; undone by a disable
  disable_unit,   // unit; undone by an enable
  remove_tree,    // path: only after the gate, not undone
};
std::string_view step_kind_name(StepKind kind);

struct Step {
  StepKind kind = StepKind::daemon_reload;
  std::string path;
  std::optional<FileImage> before;  // nullopt = nothing there
  std::optional<FileImage> after;   // nullopt = nothing there
  std::string unit;
  Mode mode = Mode::off;
  Mode mode_before = Mode::off;  // write_control: what undo writes
  std::string release;
  std::string release_before;
};

// What must hold before the change, and after its undoing, counts as good.
struct GateExpectation {
  std::string unit;  // "" = there is no engine: nothing to wait for
  int ranks = 0;     // 0 = kdtree is absent there: the unit and its health alone
  std::string release;
  Mode mode = Mode::off;
  bool operator==(const GateExpectation&) const = default;
};

struct Plan {
  Verb verb = Verb::mode;
  Deployed from, to;
  std::vector<Step> steps;     // in order; the gate comes after the last of them
  std::vector<Step> fallback;  // if going back fails too: the engine without kdtree; empty = going
                               // back is that already
  std::vector<Step> cleanup;   // after the gate; a failure here is said and is no reason to undo
  // The engine's unit as systemd has it and as it will have it (unit_lines.h): shown as a
  // difference, and part of the hash.
  std::vector<std::string> unit_now, unit_then;
  bool restarts_engine = false;
  bool engine_was_active = false;  // false: undo leaves it stopped
  bool forced = false;
  GateExpectation gate;
  GateExpectation undo_gate;
  State after;                     // what state.json holds once the gate has passed
  std::vector<std::string> notes;  // what the operator should know, a line each
  bool empty() const { return steps.empty() && cleanup.empty(); }
  // Running ranks are told another mode.
  bool switches_live() const;
};

// Pure. `on` is never entered by a restart unless that is forced: where a restart is needed, the
// plan goes to validate with the command line of on, so that those processes can be proven; its
// `to` and a note say so. An engine that was stopped stays stopped, but for a deploy, and what was
// not tried is not called good. Errors: usage (the configuration can't be right) or refused (this
// host can't be changed so), each with a hint.
Result<Plan> make_plan(const Facts& facts, const Config& config, const Wish& wish);

// The state from which `release` can go into mode on without a restart: validate, with the command
// line of on.
Deployed way_into_on(const Config& config, const std::string& release);

// Is kdtree under the unit that the configuration names? Errors: refused: it is under another one,
// or in another way (whole unit, drop-in); names it and says what to do.
Status check_same_unit(const State& state, const Config& config);

// Does the command line make as many ranks on this host as the configuration expects? What it
// doesn't give as a number is not judged. Errors: refused: says both numbers.
Status check_ranks(const std::string& exec_start, const Config& config);

// Every path whose content make_plan wants in Facts::files.
std::vector<std::string> planned_paths(const Config& config);

// sha256 over the canonical JSON: steps, contents before and after, the unit as systemd has it,
// gate. Equal facts and wishes give equal hashes.
std::string plan_hash(const Plan& plan);
nlohmann::ordered_json to_json(const Plan& plan);
// Of an empty plan: one line, without its newline.
std::string nothing_to_do(const Plan& plan);
// For people: a unified-diff-like text of each file, then what is reloaded, restarted and waited
// for.
std::string to_text(const Plan& plan);

// The inverse of to_json(Plan). Errors: refused: damaged.
Result<Plan> parse_plan(const nlohmann::json& value);

}  // namespace kdtree
