// SPDX-License-Identifier: Apache-2.0
#include <memory>
#include <optional>

#include "agent/cli/change.h"
#include "agent/cli/change_plans.h"
#include "agent/cli/engine_python.h"
#include "agent/cli/verbs.h"
#include "agent/util/http_get.h"
#include "agent/util/interrupt.h"

namespace kdtree {
namespace {

constexpr std::size_t kReleasesKept = 5;
constexpr std::chrono::minutes kSelftestDeadline{20};

struct Options {
  DeployWish wish;
  ChangeOptions change;
};

Result<SelftestProof> prove(Context& context, const Config& config, const UnitState& unit,
                            const std::filesystem::path& release) {
  const std::string device(to_string(config.kernel.device));
  KDTREE_TRY_ASSIGN(const auto answer,
                    run_selftest(config, unit, release, device, kSelftestDeadline));
  if (!answer.passed)
    return fail(ExitCode::refused,
                "the kernel is wrong on this machine: selftest on " + answer.device + " failed" +
                    (answer.worst.empty() ? "" : ", worst case " + answer.worst),
                "nothing was changed; report it with the selftest's output");
  if ((answer.device == "cpu") != (config.kernel.device == KernelDevice::cpu))
    return fail(ExitCode::refused,
                "kernel.device is " + device + ", but the selftest ran on " + answer.device,
                "kdtreectl doctor says what is wrong with the device");
  context.out.note("selftest passed on " + answer.device + ", " + std::to_string(answer.cases) +
                   " cases");
  for (const auto& [type, why] : answer.unproven_kv) {
    std::string line = type;
    line += " KV is left to the engine's kernel, the selftest did not prove it: ";
    line += why;
    context.out.note(line);
  }
  return SelftestProof{answer.device, answer.cases, answer.proven_kv};
}

Status build(Context& context, const Config& config, const BuildInputs& inputs) {
  BuildPorts ports;
  KDTREE_TRY_ASSIGN(auto services, context.services());
  KDTREE_TRY_ASSIGN(const UnitState unit, services->unit(config.engine.unit));
  KDTREE_TRY_ASSIGN(ports.build_as, engine_user(config, unit));
  const auto started = std::chrono::steady_clock::now();
  ports.progress = [&](const std::string& stage, const std::string& line) {
    const auto elapsed = std::chrono::duration_cast<std::chrono::milliseconds>(
        std::chrono::steady_clock::now() - started);
    context.out.progress("build: " + stage,
                         stage + "  [" + human_duration(elapsed.count()) + "]  " + line);
  };
  ports.selftest = [&](const std::filesystem::path& release) {
    return prove(context, config, unit, release);
  };
  const InterruptGuard guard;
  auto built = build_release(context.root, inputs, ports);
  context.out.end_progress();
  if (!built) return tl::make_unexpected(std::move(built).error());
  context.out.note("release " + built->manifest.release +
                   (built->reused ? " is there already and whole" : " is built"));
  return {};
}

void describe_build(Context& context, const DeployPlan& deploy) {
  const Manifest& release = deploy.release;
  std::string text = deploy.is_built
                         ? "use release " + release.release + ", built " + release.created
                         : "build release " + release.release;
  text += " for " + release.engine + " " + release.engine_version + ", torch " + release.torch;
  for (const auto& arch : release.archs) text += ", sm_" + arch;
  if (release.device == "cpu") text += ", CPU implementation only";
  context.out.line(text);
}

// Going back to an engine that does not serve can't pass the gate either: better said before.
void note_health(Context& context, const Config& config, const Plan& plan) {
  if (!plan.engine_was_active) return;  // the plan's own note says so
  const auto answer = http_get(config.engine.health_url, std::chrono::seconds(5));
  if (answer && answer->status == 200) return;
  context.out.note("note: the engine is not healthy now (" +
                   (answer ? "HTTP " + std::to_string(answer->status) : answer.error().what) +
                   "): if the deploy fails, going back to that will be reported as failed too");
}

void prune(Context& context) {
  auto state = read_state(context.root);
  if (!state) return;
  std::vector<std::string> needed = {state->current.release};
  if (state->good) needed.push_back(state->good->release);
  if (state->before) needed.push_back(state->before->release);
  auto removed = prune_releases(context.root, kReleasesKept, needed);
  if (!removed) return context.out.note("old releases were not removed: " + removed.error().what);
  for (const auto& id : *removed) context.out.note("removed old release " + id);
}

Result<ExitCode> run_deploy(Context& context, const Options& options) {
  KDTREE_TRY_ASSIGN(const auto config, context.config());
  std::optional<LockFile> lock;
  if (!options.change.dry_run) {
    KDTREE_TRY_ASSIGN(lock, begin_change(context, "deploy", options.change));
  }
  KDTREE_TRY_ASSIGN(const auto deploy, plan_deploy(context, *config, options.wish));
  if (!deploy.plan.empty() || !deploy.is_built) {
    note_health(context, *config, deploy.plan);
    if (options.change.dry_run || !options.change.yes) describe_build(context, deploy);
  }
  KDTREE_TRY_ASSIGN(const bool wanted, review(context, deploy.plan, options.change));
  const bool only_damaged = deploy.plan.empty() && !deploy.is_built && !options.change.dry_run;
  if (only_damaged && !options.change.yes && !context.out.confirm("Build the release again?"))
    return fail(ExitCode::refused, "deploy was not confirmed, nothing was changed",
                "--yes answers the question");
  if (!wanted && !only_damaged) return ExitCode::done;
  KDTREE_TRY(build(context, *config, deploy.inputs));
  if (only_damaged) return ExitCode::done;
  KDTREE_TRY_ASSIGN(const auto code,
                    carry_out_reviewed(context, *config, deploy.plan, options.change));
  if (code == ExitCode::done) prune(context);
  // `--mode on` that ends in validate is not what was asked for.
  const bool short_of_it = options.wish.mode == "on" && deploy.plan.to.mode != Mode::on;
  return code == ExitCode::done && short_of_it ? ExitCode::bad_answer : code;
}

}  // namespace

void setup_deploy(CLI::App& app, Context& context) {
  auto options = std::make_shared<Options>();
  auto& verb = add_verb(app, context, "deploy",
                        "Build the kernel for this host's engine and put it under the engine",
                        [&context, options] { return run_deploy(context, *options); });
  verb.add_option("--mode", options->wish.mode,
                  "Mode to start in: off (default for a new release) or validate")
      ->check(one_of({"off", "validate", "on"}))
      ->type_name("MODE");
  verb.add_flag("--accept-engine", options->wish.accept_engine,
                "Accept an engine that kdtree was not tested with, if the patch binds to it; this "
                "is recorded");
  add_change_options(verb, options->change);
  verb.footer(
      "The release is built and tested before anything that serves is touched. The engine is then "
      "restarted with the patch; if it does not become healthy, the old state is put back.");
}

}  // namespace kdtree
