// SPDX-License-Identifier: Apache-2.0
#include "agent/plan/plan.h"

#include <algorithm>

#include "agent/plan/engine_unit.h"
#include "agent/plan/plan_checks.h"
#include "agent/plan/unit_lines.h"
#include "agent/util/root.h"
#include "agent/util/sha256.h"

namespace kdtree {
namespace {

constexpr const char* kAgentUnit = "kdtree-agent.service";
constexpr const char* kEverything = "/opt/kdtree";

const std::optional<FileImage>& now_at(const Facts& facts, const std::string& path) {
  static const std::optional<FileImage> nothing;
  const auto found = facts.files.find(path);
  return found == facts.files.end() ? nothing : found->second;
}

Step unit_step(StepKind kind, const std::string& unit) {
  Step step;
  step.kind = kind;
  step.unit = unit;
  return step;
}

Step tree_step(const char* path) {
  Step step;
  step.kind = StepKind::remove_tree;
  step.path = path;
  return step;
}

Step file_step(const Facts& facts, const std::string& path, const std::string& text, mode_t mode) {
  Step step;
  step.path = path;
  step.before = now_at(facts, path);
  step.kind = text.empty() ? StepKind::remove_file : StepKind::write_file;
  if (!text.empty()) step.after = FileImage{text, {mode, 0, 0}, {}};
  return step;
}

// Adds the step unless the file holds that text already.
bool add_file(std::vector<Step>& steps, const Facts& facts, const std::string& path,
              const std::string& text, mode_t mode = 0644) {
  const auto& now = now_at(facts, path);
  const bool same = text.empty() ? !now : now && now->symlink_target.empty() && now->bytes == text;
  if (same) return false;
  steps.push_back(file_step(facts, path, text, mode));
  return true;
}

void add_symlink(std::vector<Step>& steps, const Facts& facts, const std::string& target) {
  const auto& now = now_at(facts, paths::kCurrent);
  if (now && now->symlink_target == target) return;
  Step step;
  step.kind = StepKind::set_symlink;
  step.path = paths::kCurrent;
  step.before = now;
  step.after = FileImage{{}, {}, target};
  steps.push_back(std::move(step));
}

GateExpectation gate_of(const Config& config, const Deployed& state) {
  if (state.none() || state.cold) return {config.engine.unit, 0, {}, Mode::off};
  return {config.engine.unit, config.engine.ranks, state.release, state.mode};
}

// Stopped by somebody, not failed: whoever stopped it wants it so.
bool is_stopped(const UnitState& unit) {
  return unit.exists() && (unit.active_state == "inactive" || unit.active_state == "deactivating");
}

// `tried`: the plan has a gate.
State state_after(const Facts& facts, const Wish& wish, const Config& config,
                  const EngineUnit& unit, bool tried) {
  State state = facts.state;
  state.history.clear();
  state.trial = false;
  state.current = wish.target;
  if (wish.target.none()) {
    state.good.reset();
    state.before.reset();
  } else if (tried) {
    const bool moved = state.good && *state.good != wish.target;
    if (wish.verb == Verb::rollback)
      state.before.reset();
    else if (moved && !state.good->none())
      state.before = state.good;
    state.good = wish.target;
  }
  if (!config.document.empty()) state.configuration = config.document;
  state.managed.clear();
  if (!unit.text.empty() && !wish.target.none()) state.managed[unit.path] = sha256_hex(unit.text);
  if (!unit.environment_text.empty())
    state.managed[unit.environment_path] = sha256_hex(unit.environment_text);
  if (wish.target.none()) {
    state.unit_before.reset();
    state.configuration.reset();
    state.accepted_engines.clear();
  } else if (!state.unit_before && !config.engine.whole_unit()) {
    const std::string fragment = facts.unit.files.empty() ? "" : facts.unit.files[0].text;
    state.unit_before = UnitBefore{config.engine.unit, unit.base_exec_start, sha256_hex(fragment)};
  }
  return state;
}

bool is_there(const Facts& facts, const char* tree) {
  return std::ranges::find(facts.trees, tree) != facts.trees.end();
}

void add_cleanup(Plan& plan, const Facts& facts, const Wish& wish) {
  if (!wish.target.none()) {
    if (wish.verb == Verb::deploy && facts.agent_unit) {
      plan.cleanup.push_back(unit_step(StepKind::enable_unit, kAgentUnit));
      plan.cleanup.push_back(unit_step(StepKind::start_unit, kAgentUnit));
    }
    return;
  }
  const bool deployed = !plan.from.none() || !plan.steps.empty();
  if (deployed && facts.agent_unit) {
    plan.cleanup.push_back(unit_step(StepKind::stop_unit, kAgentUnit));
    plan.cleanup.push_back(unit_step(StepKind::disable_unit, kAgentUnit));
  }
  if (!wish.keep_releases && (deployed || is_there(facts, kEverything)))
    plan.cleanup.push_back(tree_step(kEverything));
  if (deployed || is_there(facts, paths::kStats))  // ranks that were killed leave theirs
    plan.cleanup.push_back(tree_step(paths::kStats));
}

// Says who else changed the unit's file, and why an engine that keeps release and patch has to be
// restarted all the same.
void note_start(Plan& plan, const Facts& facts, const Wish& wish, const EngineUnit& unit,
                bool same_start) {
  const auto& now = now_at(facts, unit.path);
  const auto kept = facts.state.managed.find(unit.path);
  const bool edited =
      kept != facts.state.managed.end() && (!now || sha256_hex(now->bytes) != kept->second);
  const std::string who = unit.path + (now ? " was changed by somebody else" : " is gone");
  const bool keeps = plan.from.release == wish.target.release && !plan.from.none() &&
                     !plan.from.cold && !wish.target.cold;
  if (!plan.restarts_engine || !keeps) {
    if (edited && (now || !unit.text.empty()))
      plan.notes.push_back(who + (unit.text.empty() ? ": it is removed" : ": it is written again") +
                           (plan.restarts_engine ? "" : ", without a restart"));
    return;
  }
  const std::string line = now ? exec_start_of(now->bytes) : "";
  std::string why = "not every rank is armed";
  if (!same_start && edited)
    why = who + ", and the engine may have been started so";
  else if (!same_start && (line.empty() ? unit.base_exec_start : line) != unit.exec_start)
    why = "the command line of mode " + std::string(to_string(wish.target.command_line())) +
          " is another one";
  else if (!same_start)
    why = "the environment that the engine is started with is another one";
  plan.notes.push_back(why + ": the engine has to be restarted");
}

// Everything that differs between the unit's files, the symlink and the control file, and what it
// takes to make it real.
void add_steps(Plan& plan, const Facts& facts, const Config& config, const Wish& wish,
               const EngineUnit& unit) {
  const auto& now = now_at(facts, unit.path);
  const bool armed = !wish.target.none() && !wish.target.cold;
  std::vector<Step> files;
  const bool unit_changed = add_file(files, facts, unit.path, unit.text);
  const bool environment_changed =
      add_file(files, facts, unit.environment_path, unit.environment_text, 0600);
  if (wish.target.none()) {
    add_file(files, facts, paths::kCurrent, "");
  } else {
    add_symlink(files, facts, std::string(paths::kReleases) + "/" + wish.target.release);
  }
  const bool same_start = plan.from.release == wish.target.release &&
                          plan.from.cold == wish.target.cold && !plan.from.none() && now &&
                          without_mode(now->bytes) == without_mode(unit.text) &&
                          !environment_changed;
  const bool was_plain = plan.from.none() || plan.from.cold;
  plan.restarts_engine = wish.restart || (armed ? !same_start : !was_plain || unit_changed);
  const bool stays_stopped = is_stopped(facts.unit.state) && wish.verb != Verb::deploy;
  if ((!facts.unit.state.exists() && !armed) || stays_stopped) plan.restarts_engine = false;
  note_start(plan, facts, wish, unit, same_start);

  // Ranks obey the control file until they end, and the new ones start in their environment's mode.
  if (plan.restarts_engine || !armed || stays_stopped) add_file(files, facts, paths::kControl, "");
  plan.steps.insert(plan.steps.end(), files.begin(), files.end());
  if (unit_changed || environment_changed || facts.unit.state.need_daemon_reload)
    plan.steps.push_back(unit_step(StepKind::daemon_reload, ""));
  if (config.engine.whole_unit() && facts.unit.state.unit_file_state != "enabled" && armed)
    plan.steps.push_back(unit_step(StepKind::enable_unit, config.engine.unit));
  if (plan.restarts_engine) {
    plan.steps.push_back(unit_step(StepKind::restart_unit, config.engine.unit));
  } else if (armed && !stays_stopped &&
             (plan.from.mode != wish.target.mode ||
              (facts.control && facts.control->mode != wish.target.mode))) {
    Step step;
    step.kind = StepKind::write_control;
    step.mode = wish.target.mode;
    step.mode_before = plan.from.mode;
    step.release = step.release_before = wish.target.release;
    plan.steps.push_back(std::move(step));
  }
}

Status add_fallback(Plan& plan, const Facts& facts, const Config& config) {
  if (plan.from.none() || plan.from.cold) return {};
  KDTREE_TRY_ASSIGN(auto plain, make_engine_unit(facts, config, Deployed{}));
  plan.fallback.push_back(file_step(facts, plain.path, plain.text, 0644));
  plan.fallback.push_back(file_step(facts, plain.environment_path, "", 0600));
  plan.fallback.push_back(file_step(facts, paths::kControl, "", 0644));
  plan.fallback.push_back(unit_step(StepKind::daemon_reload, ""));
  plan.fallback.push_back(unit_step(StepKind::restart_unit, config.engine.unit));
  return {};
}

}  // namespace

std::vector<std::string> planned_paths(const Config& config) {
  return {engine_unit_path(config), kEngineEnvironment, paths::kCurrent, paths::kControl};
}

bool Plan::switches_live() const {
  return std::ranges::any_of(steps,
                             [](const Step& step) { return step.kind == StepKind::write_control; });
}

Deployed way_into_on(const Config& config, const std::string& release) {
  Deployed state{release, Mode::validate, false};
  if (config.mode(Mode::on) != config.mode(Mode::validate)) state.line = Mode::on;
  return state;
}

namespace {

Result<Plan> plan_for(const Facts& original, const Config& config, const Wish& wish) {
  Facts facts = original;
  if (!wish.accept_engine.empty())
    facts.state.accepted_engines[wish.accept_engine] = wish.target.release;
  KDTREE_TRY(check_target(facts, config, wish));
  KDTREE_TRY_ASSIGN(auto unit, make_engine_unit(facts, config, wish.target));

  if (wish.verb == Verb::deploy) KDTREE_TRY(check_ranks(unit.exec_start, config));

  Plan plan;
  plan.verb = wish.verb;
  plan.from = facts.state.current;
  plan.to = wish.target;
  plan.forced = wish.forced;
  const std::string& active = facts.unit.state.active_state;
  plan.engine_was_active = active == "active" || active == "activating" || active == "reloading";
  plan.gate = gate_of(config, wish.target);
  plan.undo_gate = gate_of(config, plan.from);
  if (!facts.unit.state.exists()) {
    plan.undo_gate.unit.clear();
    if (wish.target.none()) plan.gate.unit.clear();
  }
  if (is_stopped(facts.unit.state) && wish.verb != Verb::deploy) {
    plan.gate.unit.clear();
    plan.undo_gate.unit.clear();
  }
  plan.notes = unit.notes;
  plan.unit_now = unit_lines(facts.unit.state);
  if (facts.unit.state.exists() || !wish.target.none())
    plan.unit_then = unit_lines_after(facts, config, unit);
  add_steps(plan, facts, config, wish, unit);
  if (!plan.gate.unit.empty()) KDTREE_TRY(add_fallback(plan, facts, config));
  plan.after = state_after(facts, wish, config, unit, !plan.gate.unit.empty());
  const bool same = plan.steps.empty() && plan.from == plan.to;
  if (!same || wish.target.none()) add_cleanup(plan, facts, wish);
  for (const auto& each : facts.hand_made)
    if (!plan.empty() && !each.doubles) plan.notes.push_back(each.what + "; " + each.next);
  if (is_stopped(facts.unit.state) && !plan.empty())
    plan.notes.push_back(config.engine.unit +
                         (wish.verb == Verb::deploy
                              ? " is stopped: deploy starts it"
                              : " is stopped and stays so: this takes effect when it is started"));
  return plan;
}

}  // namespace

Result<Plan> make_plan(const Facts& facts, const Config& config, const Wish& wish) {
  KDTREE_TRY_ASSIGN(auto plan, plan_for(facts, config, wish));
  const bool enters = plan.restarts_engine || (wish.verb == Verb::deploy && plan.switches_live());
  if (wish.target.mode != Mode::on || wish.forced || !enters) return plan;
  Wish first = wish;
  first.target = way_into_on(config, wish.target.release);
  KDTREE_TRY_ASSIGN(plan, plan_for(facts, config, first));
  plan.notes.emplace_back(
      "mode on needs a clean verdict of the very processes that answer: this goes to validate, "
      "with "
      "the command line of on; then kdtreectl mode on, once kdtreectl verdict says clean");
  return plan;
}

}  // namespace kdtree
