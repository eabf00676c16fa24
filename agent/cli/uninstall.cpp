// SPDX-License-Identifier: Apache-2.0
#include <memory>
#include <optional>

#include "agent/cli/change.h"
#include "agent/cli/change_plans.h"
#include "agent/cli/verbs.h"

namespace kdtree {
namespace {

struct Options {
  bool keep_releases = false;
  ChangeOptions change;
};

Result<ExitCode> run_uninstall(Context& context, const Options& options) {
  std::optional<LockFile> lock;
  if (!options.change.dry_run) {
    KDTREE_TRY_ASSIGN(lock, begin_change(context, "uninstall", options.change));
  }
  KDTREE_TRY_ASSIGN(const auto config, context.config_or_recorded());
  KDTREE_TRY_ASSIGN(const auto plan, plan_uninstall(context, *config, options.keep_releases));
  KDTREE_TRY_ASSIGN(const auto code, carry_out(context, *config, plan, options.change));
  if (code == ExitCode::done && !options.change.dry_run && !plan.empty()) {
    context.out.note(std::string("kept: ") + paths::kConfig + ", and history and audit log in " +
                     paths::kState);
    if (config->engine.whole_unit())
      context.out.note("kept: " + config->engine.unit + ", now without kdtree");
  }
  return code;
}

}  // namespace

void setup_uninstall(CLI::App& app, Context& context) {
  auto options = std::make_shared<Options>();
  auto& verb = add_verb(app, context, "uninstall",
                        "Restart the engine as it was before kdtree and remove what deploy made",
                        [&context, options] { return run_uninstall(context, *options); });
  verb.add_flag("--keep-releases", options->keep_releases, "Leave the releases where they are");
  add_change_options(verb, options->change);
}

}  // namespace kdtree
