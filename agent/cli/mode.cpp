// SPDX-License-Identifier: Apache-2.0
#include <array>
#include <cstdio>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>

#include "agent/cli/change.h"
#include "agent/cli/change_plans.h"
#include "agent/cli/deployed.h"
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
  KDTREE_TRY_ASSIGN(auto config, context.config());
  KDTREE_TRY_ASSIGN(auto state, need_deployed(context));
  KDTREE_TRY_ASSIGN(auto set, read_ranks(context.root, config->engine.ranks));
  const int expected = config->engine.ranks;
  const int right = in_mode(set, state.current);
  const std::string mode(to_string(state.current.mode));
  if (json)
    context.out.json({{"mode", mode},
                      {"cold", state.current.cold},
                      {"release", state.current.release},
                      {"trial", state.trial},
                      {"ranks_expected", expected},
                      {"ranks_in_mode", state.current.cold ? nlohmann::ordered_json(nullptr)
                                                           : nlohmann::ordered_json(right)}});
  else if (state.current.cold)
    context.out.line(mode + "  (cold: the engine was started without the patch)");
  else
    context.out.line(mode + "  (" + std::to_string(right) + " of " + std::to_string(expected) +
                     " ranks)");
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
Result<bool> need_verdict(Context& context, const Config& config, const State& state,
                          const RankSet& set, bool force) {
  const auto verdict = judge_ranks(set, state.current.release, config.validate);
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

// Whether the operator's --force was needed to get there. Errors: refused: `on` without proof or
// verdict.
Result<bool> permit(Context& context, const Config& config, const Deployed& target,
                    const Options& options) {
  KDTREE_TRY_ASSIGN(auto state, need_deployed(context));
  if (target.mode != Mode::on || target == state.current) return false;
  KDTREE_TRY_ASSIGN(auto manifest,
                    read_manifest(release_folder(context.root, state.current.release)));
  KDTREE_TRY(need_proof(config, manifest));
  KDTREE_TRY_ASSIGN(auto set, read_ranks(context.root, config.engine.ranks));
  return need_verdict(context, config, state, set, options.force);
}

Result<ExitCode> switch_mode(Context& context, const Options& options) {
  const auto mode = parse_mode(options.mode);
  if (options.cold && mode != Mode::off)
    return fail(ExitCode::usage, "--cold starts the engine without the patch, which is mode off",
                "kdtreectl mode off --cold");
  std::optional<LockFile> lock;
  if (!options.change.dry_run) {
    KDTREE_TRY_ASSIGN(lock, begin_change(context, "mode"));
  }
  KDTREE_TRY_ASSIGN(auto config, context.config());
  KDTREE_TRY_ASSIGN(auto state, need_deployed(context));
  const Deployed target{state.current.release, *mode, options.cold};
  KDTREE_TRY_ASSIGN(const bool forced, permit(context, *config, target, options));
  KDTREE_TRY_ASSIGN(auto plan, plan_mode(context, *config, *mode, options.cold));
  plan.forced = forced;
  if (plan.restarts_engine && !options.cold && !state.current.cold) {
    KDTREE_TRY_ASSIGN(const bool armed, all_armed(context, *config, state.current.release));
    context.out.note(armed ? "the command line of mode " + options.mode +
                                 " is another one: the engine has to be restarted"
                           : "not every rank is armed: the engine has to be restarted");
  }
  return carry_out(context, *config, plan, options.change);
}

}  // namespace

void setup_mode(CLI::App& app, Context& context) {
  auto options = std::make_shared<Options>();
  auto& verb = add_verb(app, context, "mode", "Show the mode, or switch to another one",
                        [&context, options] {
                          return options->mode.empty() ? print_mode(context, options->json)
                                                       : switch_mode(context, *options);
                        });
  verb.add_option("mode", options->mode,
                  "off: the engine's own kernel answers; validate: both run, the engine's own "
                  "answers, the difference "
                  "is measured; on: kdtree's kernel answers")
      ->check(CLI::IsMember({"off", "validate", "on"}))
      ->type_name("MODE");
  verb.add_flag("--cold", options->cold, "With off: restart the engine without the patch at all");
  verb.add_flag("--force", options->force,
                "With on: don't ask for a clean verdict; this is recorded");
  verb.add_flag("--json", options->json, "Print the mode as JSON");
  add_change_options(verb, options->change);
  verb.footer(
      "Running ranks are switched without a restart where they are armed and the modes share one "
      "command line; "
      "else the engine is restarted. The change is kept only if the health gate passes.");
}

}  // namespace kdtree
