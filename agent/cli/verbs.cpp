// SPDX-License-Identifier: Apache-2.0
#include "agent/cli/verbs.h"

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
  return CLI::Validator(
      [words = std::move(words)](const std::string& given) {
        std::string list;
        for (const auto& word : words) {
          if (word == given) return std::string();
          list += (list.empty() ? "" : ", ") + word;
        }
        return "'" + given + "' is none of " + list;
      },
      "");
}

CLI::App& add_verb(CLI::App& app, Context& context, const std::string& name,
                   const std::string& summary, std::function<Result<ExitCode>()> body) {
  auto* verb = app.add_subcommand(name, summary);
  verb->callback([&context, body = std::move(body)] { context.outcome = body(); });
  return *verb;
}

}  // namespace kdtree
