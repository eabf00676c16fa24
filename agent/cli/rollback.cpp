// SPDX-License-Identifier: Apache-2.0
#include <memory>
#include <optional>

#include "agent/cli/change.h"
#include "agent/cli/change_plans.h"
#include "agent/cli/verbs.h"

namespace kdtree {
namespace {

Result<ExitCode> run_rollback(Context& context, const ChangeOptions& options) {
  std::optional<LockFile> lock;
  if (!options.dry_run) {
    KDTREE_TRY_ASSIGN(lock, begin_change(context, "rollback", options));
  }
  KDTREE_TRY_ASSIGN(const auto config, context.config_or_recorded());
  KDTREE_TRY_ASSIGN(const auto plan, plan_rollback(context, *config));
  return carry_out(context, *config, plan, options);
}

}  // namespace

void setup_rollback(CLI::App& app, Context& context) {
  auto options = std::make_shared<ChangeOptions>();
  auto& verb = add_verb(app, context, "rollback", "Go back to the last state that was good",
                        [&context, options] { return run_rollback(context, *options); });
  add_change_options(verb, *options);
  verb.footer(
      "Goes to the last good release and mode, or, where that is in force, to the good one before "
      "it; where that was mode on, to validate, since on needs a new verdict. Needs no network and "
      "no "
      "compiler.");
}

}  // namespace kdtree
