// SPDX-License-Identifier: Apache-2.0
#include <unistd.h>

#include <algorithm>
#include <memory>
#include <nlohmann/json.hpp>

#include "agent/cli/checks.h"
#include "agent/cli/verbs.h"

namespace kdtree {
namespace {

std::string_view level_name(CheckLevel level) {
  switch (level) {
    case CheckLevel::ok:
      return "OK";
    case CheckLevel::warning:
      return "warning";
    case CheckLevel::failure:
      return "failure";
    case CheckLevel::skipped:
      return "skipped";
  }
  return "?";
}

Tone tone_of(CheckLevel level) {
  switch (level) {
    case CheckLevel::ok:
      return Tone::good;
    case CheckLevel::warning:
      return Tone::warning;
    case CheckLevel::failure:
      return Tone::bad;
    case CheckLevel::skipped:
      return Tone::dim;
  }
  return Tone::plain;
}

void examine(Context& context, CheckList& list) {
  if (context.root.is_host() && geteuid() != 0)
    list.skip("privileges",
              "not root: other users' processes, the journal and the lock are not looked at",
              "run it with sudo");
  auto config = context.config();
  if (config) {
    list.ok("configuration", paths::kConfig);
  } else {
    list.bad("configuration", config.error());
    config = context.config_or_recorded();
    if (!config) return;
  }
  auto services = context.services();
  if (!services) {
    list.bad("systemd", services.error());
    return;
  }
  auto facts = collect_facts(context, **config, FactsDepth::building);
  if (!facts) {
    list.bad("engine unit", facts.error());
    return;
  }
  check_host(context, **config, *facts, list);
  check_unit(**config, *facts, list);
  check_engine(context, **config, *facts, list);
  check_deployed(context, **config, *facts, list);
}

void print(Output& out, const CheckList& list) {
  std::size_t width = 0;
  for (const auto& check : list.checks()) width = std::max(width, check.name.size());
  for (const auto& check : list.checks()) {
    std::string level(level_name(check.level));
    level.append(7 - level.size(), ' ');
    std::string name = check.name;
    name.append(width - name.size(), ' ');
    out.line(out.paint(tone_of(check.level), level) + "  " + name + "  " + check.text);
    if (!check.next.empty()) out.line(std::string(9 + width + 2, ' ') + "-> " + check.next);
  }
}

nlohmann::ordered_json as_json(const CheckList& list) {
  auto checks = nlohmann::ordered_json::array();
  for (const auto& check : list.checks()) {
    std::string level(level_name(check.level));
    std::ranges::transform(level, level.begin(),
                           [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
    checks.push_back(
        {{"check", check.name}, {"level", level}, {"text", check.text}, {"next", check.next}});
  }
  return {{"result", list.has(CheckLevel::failure)   ? "failure"
                     : list.has(CheckLevel::warning) ? "warning"
                                                     : "ok"},
          {"checks", checks}};
}

Result<ExitCode> run_doctor(Context& context, bool json) {
  CheckList list;
  examine(context, list);
  if (json)
    context.out.json(as_json(list));
  else
    print(context.out, list);
  return list.has(CheckLevel::failure) ? ExitCode::bad_answer : ExitCode::done;
}

}  // namespace

bool CheckList::has(CheckLevel level) const {
  return std::ranges::any_of(checks_, [level](const Check& check) { return check.level == level; });
}

void setup_doctor(CLI::App& app, Context& context) {
  auto json = std::make_shared<bool>(false);
  auto& verb = add_verb(app, context, "doctor",
                        "Look at everything that a deploy needs and that may have gone wrong",
                        [&context, json] { return run_doctor(context, *json); });
  verb.add_flag("--json", *json, "Print it as JSON");
  verb.footer("Changes nothing. Exit status 1 where a line says failure.");
}

}  // namespace kdtree
