// SPDX-License-Identifier: Apache-2.0
#include "agent/cli/verbs.h"

#include <algorithm>

namespace kdtree {

void add_change_options(CLI::App& verb, ChangeOptions& options) {
  verb.add_flag("--dry-run", options.dry_run, "Print what would be done and do nothing");
  verb.add_flag("-y,--yes", options.yes, "Don't ask before the change");
  verb.add_option("--plan", options.plan,
                  "Refuse unless the plan has this hash (printed by kdtreectl plan)")
      ->type_name("HASH");
  verb.add_option("--timeout", options.timeout_s,
                  "Seconds for the engine to become healthy (default: deadlines.healthy_s of the "
                  "configuration)")
      ->check(quiet(CLI::PositiveNumber))
      ->type_name("SECONDS");
}

CLI::Validator quiet(CLI::Validator validator) {
  validator.description("");
  return validator;
}

CLI::Validator one_of(std::vector<std::string> words) {
  const std::string shown = "{" + CLI::detail::join(words, ",") + "}";
  return {[words = std::move(words)](const std::string& given) {
            if (std::ranges::find(words, given) != words.end()) return std::string();
            return "'" + given + "' is none of " + CLI::detail::join(words, ", ");
          },
          shown};
}

CLI::App& add_verb(CLI::App& app, Context& context, const std::string& name,
                   const std::string& summary, std::function<Result<ExitCode>()> body) {
  auto* verb = app.add_subcommand(name, summary);
  verb->callback([&context, body = std::move(body)] { context.outcome = body(); });
  return *verb;
}

}  // namespace kdtree
