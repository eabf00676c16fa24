// SPDX-License-Identifier: Apache-2.0
#include <array>
#include <cstdio>
#include <functional>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>

#include "agent/cli/change.h"
#include "agent/cli/change_plans.h"
#include "agent/cli/deployed.h"
#include "agent/cli/manual.h"
#include "agent/cli/verbs.h"
#include "agent/gate/verdict.h"

namespace kdtree {
namespace {

struct Options {
  std::string mode;  // "" = print
  bool json = false;
  bool cold = false;
  bool force = false;
  ChangeOptions change;
};

int in_mode(const RankSet& set, const Deployed& wanted) {
  int right = 0;
  for (const auto& view : set.ranks)
    right += view.stats && view.stats->patch_state == PatchState::active &&
             view.stats->release_id == wanted.release && view.stats->mode == wanted.mode;
  return right;
}

Result<ExitCode> print_mode(Context& context, bool json) {
  KDTREE_TRY_ASSIGN(auto config, context.config_or_recorded());
  KDTREE_TRY_ASSIGN(auto state, need_deployed(context));
  KDTREE_TRY_ASSIGN(auto set, read_ranks(context.root, config->engine.ranks));
  const int expected = config->engine.ranks;
  const int right = in_mode(set, state.current);
  const std::string mode(to_string(state.current.mode));
  const std::string trial = state.trial ? ", on trial: not past its gate" : "";
  if (json)
    context.out.json({{"mode", mode},
                      {"cold", state.current.cold},
                      {"release", state.current.release},
                      {"trial", state.trial},
                      {"ranks_expected", expected},
                      {"ranks_in_mode", state.current.cold ? nlohmann::ordered_json(nullptr)
                                                           : nlohmann::ordered_json(right)}});
  else if (state.current.cold)
    context.out.line(mode + "  (cold: the engine was started without the patch" + trial + ")");
  else
    context.out.line(mode + "  (" + std::to_string(right) + " of " + std::to_string(expected) +
                     " ranks" + trial + ")");
  return state.current.cold || right == expected ? ExitCode::done : ExitCode::bad_answer;
}

std::string short_text(const Verdict& verdict) {
  std::array<char, 32> ulp{"-"};
  if (verdict.max_ulp) std::snprintf(ulp.data(), ulp.size(), "%.3g", *verdict.max_ulp);
  return std::string(verdict_name(verdict.kind)) + ", at least " +
         std::to_string(verdict.fewest_compares) + " compares on each of " +
         std::to_string(verdict.ranks.size()) + " ranks, largest difference " + ulp.data() +
         " ULP, longest prefix " + std::to_string(verdict.longest_prefix) + " tokens";
}

// Where the kernel was proven to be right has to be where it is to answer. Not to be forced.
Status need_proof(const Config& config, const Manifest& release) {
  const bool wants_cpu = config.kernel.device == KernelDevice::cpu;
  if (wants_cpu == (release.selftest_device == "cpu") && !release.selftest_device.empty())
    return {};
  return fail(ExitCode::refused,
              "kernel.device is " + std::string(to_string(config.kernel.device)) +
                  ", but the selftest of release " + release.release + " ran on " +
                  (release.selftest_device.empty() ? "nothing" : release.selftest_device),
              "kdtreectl deploy on a machine with that device proves it");
}

// Whether --force was needed. Errors: refused: no clean verdict and no --force.
Result<bool> need_verdict(Context& context, const Verdict& verdict, bool force) {
  if (verdict.kind == VerdictKind::clean) {
    context.out.note("verdict " + short_text(verdict));
    return false;
  }
  const std::string why = verdict.reasons.empty() ? "" : " (" + verdict.reasons.front() + ")";
  if (force) {
    context.out.note("forced: the verdict is " + std::string(verdict_name(verdict.kind)) + why);
    return true;
  }
  return fail(
      ExitCode::refused,
      "mode on needs a clean verdict, and it is " + std::string(verdict_name(verdict.kind)) + why,
      verdict.kind == VerdictKind::mismatch
          ? "kdtreectl verdict shows where the kernels differ"
          : "let the engine serve in mode validate until kdtreectl verdict says clean");
}

// Are the ranks still the processes of `judged`?
Status same_processes(const Root& root, const RankSet& judged) {
  KDTREE_TRY_ASSIGN(const auto now, read_ranks(root, static_cast<int>(judged.ranks.size())));
  for (std::size_t i = 0; i < judged.ranks.size(); ++i) {
    const auto& before = judged.ranks[i].stats;
    const auto& after = now.ranks[i].stats;
    if (!before || !after || before->pid != after->pid ||
        before->pid_start_ticks != after->pid_start_ticks)
      return fail(
          ExitCode::rolled_back,
          "rank " + std::to_string(i) + " is not the process any more whose verdict was clean");
  }
  return {};
}

struct IntoOn {
  Plan plan;
  std::optional<RankSet> judged;  // the processes whose clean verdict this rests on
};

// `on` is entered live only, by processes whose own verdict is clean, or by force. Errors: refused:
// `on` without proof or verdict.
Result<IntoOn> plan_into_on(Context& context, const Config& config, const State& state,
                            bool force) {
  IntoOn into;
  KDTREE_TRY_ASSIGN(into.plan, plan_mode(context, config, Mode::on, false));
  KDTREE_TRY_ASSIGN(auto set, read_ranks(context.root, config.engine.ranks));
  const Deployed on{state.current.release, Mode::on, false};
  if (into.plan.empty() || (into.plan.to == on && in_mode(set, on) == config.engine.ranks))
    return into;  // nobody enters it: a file is put right at most
  KDTREE_TRY_ASSIGN(auto manifest,
                    read_manifest(release_folder(context.root, state.current.release)));
  KDTREE_TRY(need_proof(config, manifest));
  const auto verdict = judge_ranks(set, state.current.release, config.validate);
  const bool by_way_of_validate = into.plan.to != on;
  KDTREE_TRY_ASSIGN(const bool needed, need_verdict(context, verdict, force));
  if (by_way_of_validate && !force) return into;
  if (!needed && !by_way_of_validate) {
    into.judged = std::move(set);
    return into;
  }
  if (!needed) context.out.note("forced: the processes that will answer have compared nothing");
  KDTREE_TRY_ASSIGN(into.plan, plan_mode(context, config, Mode::on, false, true));
  return into;
}

Status check_options(const Options& options) {
  if (options.mode.empty() && (options.cold || options.force))
    return fail(ExitCode::usage, "--cold and --force change the mode, and none is given",
                "kdtreectl mode off --cold, kdtreectl mode on --force");
  if (options.mode.empty()) return {};
  if (options.cold && options.mode != "off")
    return fail(ExitCode::usage, "--cold starts the engine without the patch, which is mode off",
                "kdtreectl mode off --cold");
  if (options.force && options.mode != "on")
    return fail(ExitCode::usage,
                "--force goes with mode on only: it is the verdict that it forgoes",
                "kdtreectl mode " + options.mode);
  return {};
}

Result<ExitCode> switch_mode(Context& context, const Options& options) {
  const Mode mode = *parse_mode(options.mode);
  if (mode != Mode::off) KDTREE_TRY(context.config());
  std::optional<LockFile> lock;
  if (!options.change.dry_run) {
    KDTREE_TRY_ASSIGN(lock, begin_change(context, "mode", options.change));
  }
  KDTREE_TRY_ASSIGN(auto config, context.config_or_recorded());
  KDTREE_TRY_ASSIGN(auto state, need_deployed(context));
  IntoOn change;
  if (mode == Mode::on) {
    KDTREE_TRY_ASSIGN(change, plan_into_on(context, *config, state, options.force));
  } else {
    KDTREE_TRY_ASSIGN(change.plan, plan_mode(context, *config, mode, options.cold));
  }
  if (mode != Mode::off && !options.change.yes && !change.plan.empty())
    context.out.note("mode " + options.mode + ": " + std::string(mode_costs(mode)));
  std::function<Status()> same;
  if (change.judged)
    same = [&context, &change] { return same_processes(context.root, *change.judged); };
  KDTREE_TRY_ASSIGN(const auto code,
                    carry_out(context, *config, change.plan, options.change, same));
  // Asked for on, brought to validate: done so far, and the answer is "not yet".
  const bool short_of_it = mode == Mode::on && change.plan.to.mode != Mode::on;
  return code == ExitCode::done && short_of_it && !options.change.dry_run ? ExitCode::bad_answer
                                                                          : code;
}

}  // namespace

void setup_mode(CLI::App& app, Context& context) {
  auto options = std::make_shared<Options>();
  auto& verb = add_verb(app, context, "mode", "Show the mode, or switch to another one",
                        [&context, options]() -> Result<ExitCode> {
                          KDTREE_TRY(check_options(*options));
                          return options->mode.empty() ? print_mode(context, options->json)
                                                       : switch_mode(context, *options);
                        });
  verb.add_option("mode", options->mode,
                  "off: the engine's own kernel answers; validate: both run, the engine's own "
                  "answers, the difference "
                  "is measured; on: kdtree's kernel answers")
      ->check(one_of({"off", "validate", "on"}))
      ->type_name("MODE");
  verb.add_flag("--cold", options->cold, "With off: restart the engine without the patch at all");
  verb.add_flag("--force", options->force,
                "With on: don't ask for a clean verdict; this is recorded");
  verb.add_flag("--json", options->json, "Print the mode as JSON");
  add_change_options(verb, options->change);
  std::string modes;
  for (const Mode mode : kAllModes)
    modes += std::string(to_string(mode)) + ": " + std::string(mode_costs(mode)) + ".\n";
  verb.footer(
      modes +
      "\nRunning ranks are switched without a restart where they are armed and the modes share one "
      "command line; else the engine is restarted. Mode on is entered without a restart only, by "
      "processes whose own verdict is clean: where that is so and a restart is needed all the "
      "same, it "
      "ends in validate, with the command line of on, and with exit status 1. An engine that is "
      "stopped stays so. The change is "
      "kept only if the health gate passes.");
}

}  // namespace kdtree
