// SPDX-License-Identifier: Apache-2.0
#include "agent/plan/plan.h"

#include <algorithm>

#include "agent/plan/engine_unit.h"
#include "agent/util/root.h"
#include "agent/util/sha256.h"

namespace kdtree {
namespace {

constexpr const char* kAgentUnit = "kdtree-agent.service";
constexpr const char* kEverything = "/opt/kdtree";
constexpr const char* kRecoverUnit = "kdtree-recover.service";

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

Status check_unit(const Facts& facts, const Config& config) {
  const UnitState& unit = facts.unit.state;
  if (!config.engine.whole_unit() && !unit.exists())
    return fail(ExitCode::refused, "there is no unit " + config.engine.unit + " on this host",
                "name an existing one as engine.unit, or give engine.command and kdtree writes it");
  if (unit.exists() && unit.load_state != "loaded")
    return fail(ExitCode::refused,
                config.engine.unit + " is " + unit.load_state +
                    (unit.load_error.empty() ? "" : ": " + unit.load_error),
                "systemctl status " + config.engine.unit);
  if (!config.engine.whole_unit() || !unit.exists()) return {};
  const std::string ours = engine_unit_path(config);
  if (unit.fragment_path != ours)
    return fail(ExitCode::refused, config.engine.unit + " exists already, in " + unit.fragment_path,
                "leave engine.command out to give it a drop-in, or name another unit");
  const auto& now = now_at(facts, ours);
  if (now && !facts.state.managed.contains(ours) && !is_written_by_kdtree(now->bytes))
    return fail(ExitCode::refused, ours + " exists already and is not kdtree's",
                "leave engine.command out to give it a drop-in, or move the file away");
  return {};
}

std::string public_version(const std::string& version) {
  return version.substr(0, version.find('+'));
}

Status check_engine(const Facts& facts, const Wish& wish) {
  const Manifest& manifest = *facts.release;
  if (!facts.engine) {
    if (wish.verb != Verb::deploy) return {};
    return fail(ExitCode::refused, "the engine can't be looked at: " + facts.engine_error,
                "check engine.python in " + std::string(paths::kConfig));
  }
  const EngineFacts& engine = *facts.engine;
  if (public_version(manifest.torch) != public_version(engine.torch))
    return fail(ExitCode::refused,
                "release " + manifest.release + " was built for torch " + manifest.torch +
                    ", the engine has " + (engine.torch.empty() ? "none" : engine.torch),
                "kdtreectl deploy builds one for it");
  return {};
}

Status check_archs(const Facts& facts, const Config& config) {
  if (config.kernel.device != KernelDevice::cuda || !facts.release) return {};
  for (const auto& gpu : facts.gpus)
    if (std::find(facts.release->archs.begin(), facts.release->archs.end(), gpu.arch) ==
        facts.release->archs.end())
      return fail(ExitCode::refused,
                  "release " + facts.release->release + " has no code for GPU " +
                      std::to_string(gpu.index) + ", " + gpu.name + " (sm_" + gpu.arch + ")",
                  "kdtreectl deploy builds it; kernel.archs = [] takes those of the GPUs present");
  return {};
}

Status check_target(const Facts& facts, const Config& config, const Wish& wish) {
  if (!facts.root)
    return fail(ExitCode::refused, std::string(verb_name(wish.verb)) + " has to be run by root",
                "sudo kdtreectl " + std::string(verb_name(wish.verb)));
  if (wish.target.none() && !facts.unit.state.exists()) return {};
  KDTREE_TRY(check_unit(facts, config));
  if (wish.target.none()) return {};
  if (!facts.release || facts.release->release != wish.target.release)
    return fail(ExitCode::refused, "release " + wish.target.release + " is not there or damaged",
                "kdtreectl deploy makes it again");
  KDTREE_TRY(check_engine(facts, wish));
  return check_archs(facts, config);
}

State state_after(const Facts& facts, const Wish& wish, const Config& config,
                  const EngineUnit& unit) {
  State state = facts.state;
  state.history.clear();
  state.trial = false;
  state.current = wish.target;
  if (wish.target.none()) {
    state.good.reset();
    state.before.reset();
  } else {
    const bool moved = state.good && *state.good != wish.target;
    if (wish.verb == Verb::rollback)
      state.before.reset();
    else if (moved && !state.good->none())
      state.before = state.good;
    state.good = wish.target;
  }
  state.managed.clear();
  if (!unit.text.empty() && !wish.target.none()) state.managed[unit.path] = sha256_hex(unit.text);
  if (!unit.environment_text.empty())
    state.managed[unit.environment_path] = sha256_hex(unit.environment_text);
  if (wish.target.none()) {
    state.unit_before.reset();
    state.accepted_engines.clear();
  } else if (!state.unit_before && !config.engine.whole_unit()) {
    const std::string fragment = facts.unit.files.empty() ? "" : facts.unit.files[0].text;
    state.unit_before = UnitBefore{config.engine.unit, unit.base_exec_start, sha256_hex(fragment)};
  }
  return state;
}

void add_cleanup(Plan& plan, const Facts& facts, const Wish& wish) {
  if (!wish.target.none()) {
    if (wish.verb == Verb::deploy && facts.agent_unit) {
      plan.cleanup.push_back(unit_step(StepKind::enable_unit, kAgentUnit));
      plan.cleanup.push_back(unit_step(StepKind::start_unit, kAgentUnit));
    }
    return;
  }
  if (facts.agent_unit) {
    plan.cleanup.push_back(unit_step(StepKind::stop_unit, kAgentUnit));
    plan.cleanup.push_back(unit_step(StepKind::disable_unit, kAgentUnit));
  }
  if (facts.recover_unit && facts.recover_enabled)
    plan.cleanup.push_back(unit_step(StepKind::disable_unit, kRecoverUnit));
  if (!wish.keep_releases) plan.cleanup.push_back(tree_step(kEverything));
  plan.cleanup.push_back(tree_step(paths::kStats));  // ranks that were killed leave theirs
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
  if (!facts.unit.state.exists() && !armed) plan.restarts_engine = false;

  // Ranks obey the control file until they end, and the new ones start in their environment's mode.
  if (plan.restarts_engine || !armed) add_file(files, facts, paths::kControl, "");
  if (!wish.target.none() && facts.recover_unit && !facts.recover_enabled)
    plan.steps.push_back(unit_step(StepKind::enable_unit, kRecoverUnit));
  plan.steps.insert(plan.steps.end(), files.begin(), files.end());
  if (unit_changed || environment_changed || facts.unit.state.need_daemon_reload)
    plan.steps.push_back(unit_step(StepKind::daemon_reload, ""));
  if (config.engine.whole_unit() && facts.unit.state.unit_file_state != "enabled" && armed)
    plan.steps.push_back(unit_step(StepKind::enable_unit, config.engine.unit));
  if (plan.restarts_engine) {
    plan.steps.push_back(unit_step(StepKind::restart_unit, config.engine.unit));
  } else if (armed && (plan.from.mode != wish.target.mode ||
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

Result<Plan> make_plan(const Facts& original, const Config& config, const Wish& wish) {
  Facts facts = original;
  if (!wish.accept_engine.empty())
    facts.state.accepted_engines[wish.accept_engine] = wish.target.release;
  KDTREE_TRY(check_target(facts, config, wish));
  KDTREE_TRY_ASSIGN(auto unit, make_engine_unit(facts, config, wish.target));

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
  plan.notes = unit.notes;
  add_steps(plan, facts, config, wish, unit);
  KDTREE_TRY(add_fallback(plan, facts, config));
  plan.after = state_after(facts, wish, config, unit);
  const bool same = plan.steps.empty() && plan.from == plan.to;
  if (!same || wish.target.none()) add_cleanup(plan, facts, wish);
  return plan;
}

}  // namespace kdtree
