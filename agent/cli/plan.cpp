// SPDX-License-Identifier: Apache-2.0
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>

#include "agent/cli/change_plans.h"
#include "agent/cli/verbs.h"

namespace kdtree {
namespace {

struct Options {
  std::string change = "deploy";
  std::string mode;
  bool cold = false;
  bool accept_engine = false;
  bool keep_releases = false;
  bool json = false;
};

void print(Context& context, const Plan& plan, const std::optional<DeployPlan>& deploy, bool json) {
  const std::string hash = plan_hash(plan);
  if (json) {
    nlohmann::ordered_json value = {{"hash", hash}, {"plan", to_json(plan)}};
    if (deploy)
      value["release"] = {{"built", deploy->is_built}, {"manifest", to_json(deploy->release)}};
    return context.out.json(value);
  }
  if (deploy && !deploy->is_built)
    context.out.line("build release " + deploy->release.release + " for torch " +
                     deploy->release.torch);
  std::string text = to_text(plan);
  if (!text.empty()) text.pop_back();
  context.out.line(text);
  for (const auto& note : plan.notes) context.out.line("note: " + note);
  context.out.line("plan " + hash);
}

Result<ExitCode> run_plan(Context& context, const Options& options) {
  const bool wants_mode = options.change == "mode";
  if (wants_mode && options.mode.empty())
    return fail(ExitCode::usage, "plan mode needs the mode", "kdtreectl plan mode validate");
  if (options.cold && !(wants_mode && options.mode == "off"))
    return fail(ExitCode::usage, "--cold goes with mode off only",
                "kdtreectl plan mode off --cold");
  const bool way_back = options.change == "rollback" || options.change == "uninstall" ||
                        (wants_mode && options.mode == "off");
  KDTREE_TRY_ASSIGN(const auto config, way_back ? context.config_or_recorded() : context.config());
  if (!context.need_root("plan"))
    return fail(ExitCode::refused, "plan has to be run by root: it reads files that are root's",
                "sudo kdtreectl plan " + options.change);
  std::optional<DeployPlan> deploy;
  Result<Plan> plan = Plan{};
  if (options.change == "deploy") {
    KDTREE_TRY_ASSIGN(deploy, plan_deploy(context, *config, {options.mode, options.accept_engine}));
    plan = deploy->plan;
  } else if (options.change == "rollback") {
    plan = plan_rollback(context, *config);
  } else if (options.change == "uninstall") {
    plan = plan_uninstall(context, *config, options.keep_releases);
  } else {
    plan = plan_mode(context, *config, *parse_mode(options.mode), options.cold);
  }
  if (!plan) return tl::make_unexpected(std::move(plan).error());
  print(context, *plan, deploy, options.json);
  return ExitCode::done;
}

}  // namespace

void setup_plan(CLI::App& app, Context& context) {
  auto options = std::make_shared<Options>();
  auto& verb = add_verb(app, context, "plan", "Show what a change would do, and do nothing",
                        [&context, options] { return run_plan(context, *options); });
  verb.add_option("change", options->change, "deploy (default), mode, rollback or uninstall")
      ->check(one_of({"deploy", "mode", "rollback", "uninstall"}))
      ->type_name("CHANGE");
  verb.add_option("mode", options->mode, "Of mode: the one to switch to; of deploy: to start in")
      ->check(one_of({"off", "validate", "on"}))
      ->type_name("MODE");
  verb.add_flag("--cold", options->cold, "With mode off: without the patch at all");
  verb.add_flag("--accept-engine", options->accept_engine, "As with deploy");
  verb.add_flag("--keep-releases", options->keep_releases, "As with uninstall");
  verb.add_flag("--json", options->json, "Print the plan as JSON");
  verb.footer(
      "Prints a diff of each file and of the engine's unit as systemd has it (its files, "
      "environment and command line), what is reloaded, restarted and waited for, and the plan's "
      "hash: a change with --plan HASH is refused where any of that has changed since.");
}

}  // namespace kdtree
