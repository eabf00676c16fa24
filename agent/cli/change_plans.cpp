// SPDX-License-Identifier: Apache-2.0
#include "agent/cli/change_plans.h"

#include "agent/cli/collect_facts.h"
#include "agent/cli/deployed.h"
#include "agent/gate/ranks.h"

namespace kdtree {
namespace {

Result<Mode> mode_to_deploy(const DeployWish& wish, const State& state,
                            const std::string& release) {
  const bool in_force = state.current.release == release;
  if (wish.mode.empty()) return in_force ? state.current.mode : Mode::off;
  const auto mode = parse_mode(wish.mode);
  if (!mode) return fail(ExitCode::usage, "'" + wish.mode + "' is not a mode", "off or validate");
  if (*mode == Mode::on && !(in_force && state.current.mode == Mode::on))
    return fail(ExitCode::refused,
                "mode on needs a clean verdict, and a new release has compared nothing yet",
                "deploy it, then kdtreectl mode validate, then kdtreectl mode on");
  return *mode;
}

// The release's manifest, if it is there and every file of it is what was installed.
Result<Manifest> whole_release(Context& context, const std::string& release) {
  const auto folder = release_folder(context.root, release);
  KDTREE_TRY_ASSIGN(auto manifest, read_manifest(folder));
  KDTREE_TRY(verify_release(folder, manifest));
  return manifest;
}

// The plan; where it restarts the engine with the patch, only if the release fits what the engine
// will come up on.
Result<Plan> plan_on_ground(Context& context, const Config& config, Facts& facts,
                            const Wish& change) {
  KDTREE_TRY_ASSIGN(auto plan, make_plan(facts, config, change));
  if (!plan.restarts_engine || change.target.cold) return plan;
  look_at_ground(context, config, facts);
  return make_plan(facts, config, change);
}

}  // namespace

Result<bool> all_armed(Context& context, const Config& config, const std::string& release) {
  KDTREE_TRY_ASSIGN(const auto set, read_ranks(context.root, config.engine.ranks));
  if (!set.conflicts.empty()) return false;
  for (const auto& rank : set.ranks)
    if (!rank.stats || rank.stats->patch_state != PatchState::active ||
        rank.stats->release_id != release)
      return false;
  return true;
}

Result<DeployPlan> plan_deploy(Context& context, const Config& config, const DeployWish& wish) {
  KDTREE_TRY_ASSIGN(auto facts, collect_facts(context, config, FactsDepth::building));
  DeployPlan deploy;
  const bool unknown = facts.engine && !facts.engine->known &&
                       facts.engine->differences.size() > 1 &&
                       !facts.state.accepted_engines.contains(facts.engine->fingerprint);
  for (const auto& each : unknown ? facts.engine->differences : std::vector<std::string>{})
    context.out.note("engine: " + each);
  KDTREE_TRY_ASSIGN(deploy.inputs, build_inputs(facts, config, wish.accept_engine));
  deploy.release = expected_manifest(deploy.inputs);
  if (auto built = whole_release(context, deploy.release.release)) {
    deploy.release = std::move(*built);
    deploy.is_built = true;
  }
  facts.release = deploy.release;

  Wish change;
  change.verb = Verb::deploy;
  change.target.release = deploy.release.release;
  KDTREE_TRY_ASSIGN(change.target.mode, mode_to_deploy(wish, facts.state, deploy.release.release));
  if (!facts.engine->known) change.accept_engine = facts.engine->fingerprint;
  if (facts.state.current.release == change.target.release && !facts.state.current.cold) {
    KDTREE_TRY_ASSIGN(const bool armed, all_armed(context, config, change.target.release));
    change.restart = !armed;
  }
  KDTREE_TRY_ASSIGN(deploy.plan, make_plan(facts, config, change));
  return deploy;
}

Result<Plan> plan_rollback(Context& context, const Config& config) {
  KDTREE_TRY_ASSIGN(auto facts, collect_facts(context, config, FactsDepth::switching));
  KDTREE_TRY_ASSIGN(const auto state, need_deployed(context));
  const bool at_good = state.good && *state.good == state.current;
  const auto& target = at_good ? state.before : state.good;
  if (!target)
    return fail(ExitCode::refused,
                "there is nothing to go back to: " + describe(state.current) +
                    " is the first that was good",
                "kdtreectl mode off --cold starts the engine without kdtree; kdtreectl uninstall "
                "removes it");
  KDTREE_TRY_ASSIGN(facts.release, whole_release(context, target->release));
  Wish change;
  change.verb = Verb::rollback;
  change.target = *target;
  // `on` needs a verdict of the process that will answer, and going back brings none along.
  const bool unproven = target->mode == Mode::on;
  if (unproven) change.target = way_into_on(config, target->release);
  if (target->release == state.current.release && !target->cold && !state.current.cold) {
    KDTREE_TRY_ASSIGN(const bool armed, all_armed(context, config, target->release));
    change.restart = !armed;
  }
  KDTREE_TRY_ASSIGN(auto plan, plan_on_ground(context, config, facts, change));
  if (unproven)
    plan.notes.emplace_back(
        "back to mode on by way of validate: kdtreectl mode on, once the verdict is clean");
  return plan;
}

Result<Plan> plan_uninstall(Context& context, const Config& config, bool keep_releases) {
  KDTREE_TRY_ASSIGN(auto facts, collect_facts(context, config, FactsDepth::removing));
  Wish change;
  change.verb = Verb::uninstall;
  change.keep_releases = keep_releases;
  return make_plan(facts, config, change);
}

Result<Plan> plan_mode(Context& context, const Config& config, Mode mode, bool cold, bool forced) {
  KDTREE_TRY_ASSIGN(const auto state, need_deployed(context));
  KDTREE_TRY_ASSIGN(auto facts, collect_facts(context, config, FactsDepth::switching));
  Wish change;
  change.verb = Verb::mode;
  change.target = {state.current.release, mode, cold};
  change.forced = forced;
  if (!cold) {
    KDTREE_TRY_ASSIGN(const bool armed, all_armed(context, config, state.current.release));
    change.restart = !armed;
  }
  return plan_on_ground(context, config, facts, change);
}

}  // namespace kdtree
