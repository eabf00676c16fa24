// SPDX-License-Identifier: Apache-2.0
#include "agent/cli/engine_python.h"

#include <unistd.h>

#include <nlohmann/json.hpp>

#include "agent/util/trusted_path.h"

namespace kdtree {
namespace {

using Json = nlohmann::json;

constexpr std::chrono::seconds kProbeDeadline{30};

// The JSON object in `text`, which may follow lines of warnings.
Result<Json> last_json_object(const std::string& text, const std::string& who) {
  for (auto at = text.find('{'); at != text.npos; at = text.find("\n{", at)) {
    if (text[at] == '\n') ++at;
    auto value = Json::parse(text.substr(at), nullptr, false);
    if (value.is_object()) return value;
  }
  return fail(ExitCode::refused, who + " gave no answer that can be read");
}

std::string text_of(const Json& object, const char* key) {
  auto it = object.find(key);
  return it != object.end() && it->is_string() ? it->get<std::string>() : "";
}

bool flag_of(const Json& object, const char* key) {
  auto it = object.find(key);
  return it != object.end() && it->is_boolean() && it->get<bool>();
}

Result<Outcome> run(const Command& command, const std::string& who) {
  auto outcome = run_command(command);
  if (!outcome) return prefixed(who, outcome.error());
  return outcome;
}

// {"case": "all", "relative": 0.5} -> "case all, relative 0.5"
std::string words_of(const Json& value) {
  if (!value.is_object()) return value.is_string() ? value.get<std::string>() : value.dump();
  std::string text;
  for (const auto& [name, part] : value.items())
    text += (text.empty() ? "" : ", ") + name + " " + words_of(part);
  return text;
}

std::string failure(const Outcome& outcome) {
  auto line = outcome.last_line();
  std::string how = outcome.status >= 0 ? "exit status " + std::to_string(outcome.status)
                                        : "signal " + std::to_string(outcome.signal);
  return line.empty() ? how : line + " (" + how + ")";
}

}  // namespace

Result<std::optional<RunAs>> engine_user(const Config& config, const UnitState& unit) {
  return config.engine.whole_unit() ? run_as(config.engine.user, "")
                                    : run_as(unit.user, unit.group);
}

Result<Command> engine_command(const Config& config, const UnitState& unit,
                               const std::filesystem::path& python_path,
                               std::vector<std::string> args) {
  Command command;
  KDTREE_TRY_ASSIGN(const auto user, engine_user(config, unit));
  if (user) {
    command.argv = user->prefix();
  } else if (geteuid() == 0) {
    if (auto safe = check_only_root_replaces(config.engine.python); !safe)
      return prefixed("root would run it", std::move(safe).error());
  }
  command.argv.push_back(config.engine.python);
  command.argv.insert(command.argv.end(), args.begin(), args.end());
  command.environment = {{"PYTHONPATH", python_path.string()}, {"PYTHONDONTWRITEBYTECODE", "1"}};
  command.unset = {"KDTREE_VERIFY",  "KDTREE_LIB",          "KDTREE_STATS_DIR",
                   "KDTREE_CONTROL", "KDTREE_DEFRAG_SORT",  "KDTREE_NSPLIT",
                   "PYTHONHOME",     "KDTREE_ACCEPT_ENGINE"};
  command.directory = "/";
  return command;
}

Result<EngineFacts> probe_engine(const Config& config, const UnitState& unit,
                                 const std::filesystem::path& python_path) {
  KDTREE_TRY_ASSIGN(auto command, engine_command(config, unit, python_path,
                                                 {"-m", "kdtree_patch.probe", "--json"}));
  command.deadline = kProbeDeadline;
  const std::string who = "engine probe by " + config.engine.python;
  KDTREE_TRY_ASSIGN(auto outcome, run(command, who));
  if (!outcome.ok()) return fail(ExitCode::refused, who + ": " + failure(outcome));
  KDTREE_TRY_ASSIGN(auto answer, last_json_object(outcome.output, who));
  EngineFacts facts;
  facts.name = text_of(answer, "engine");
  facts.version = text_of(answer, "version");
  facts.fingerprint = text_of(answer, "fingerprint");
  facts.known = flag_of(answer, "known");
  facts.binds = flag_of(answer, "binds");
  facts.torch = text_of(answer, "torch");
  facts.python = text_of(answer, "python");
  facts.site = text_of(answer, "site");
  if (auto it = answer.find("differences"); it != answer.end() && it->is_array())
    for (const auto& line : *it)
      if (line.is_string()) facts.differences.push_back(line.get<std::string>());
  return facts;
}

Result<SelftestAnswer> run_selftest(const Config& config, const UnitState& unit,
                                    const std::filesystem::path& release, const std::string& device,
                                    std::chrono::milliseconds deadline) {
  std::vector<std::string> args = {"-m", "kdtree_kernel.selftest", "--lib",
                                   (release / "lib/libkdtree_torch.so").string(), "--json"};
  if (!device.empty()) args.insert(args.end(), {"--device", device});
  KDTREE_TRY_ASSIGN(auto command,
                    engine_command(config, unit, release / "python", std::move(args)));
  command.deadline = deadline;
  KDTREE_TRY_ASSIGN(auto outcome, run(command, "selftest"));
  auto answer = last_json_object(outcome.output, "selftest");
  if (!answer) return fail(ExitCode::refused, "selftest: " + failure(outcome));
  SelftestAnswer result;
  result.passed = flag_of(*answer, "passed") && outcome.ok();
  result.device = text_of(*answer, "device");
  result.torch = text_of(*answer, "torch");
  if (auto it = answer->find("cases"); it != answer->end() && it->is_number_integer())
    result.cases = it->get<int>();
  try {
    result.proven_kv = answer->value("proven_kv", result.proven_kv);
    result.unproven_kv = answer->value("unproven_kv", result.unproven_kv);
  } catch (const nlohmann::json::exception&) {
    return fail(ExitCode::refused, "selftest: what it says of KV types can't be read");
  }
  if (auto it = answer->find("worst"); it != answer->end() && !it->is_null())
    result.worst = words_of(*it);
  result.output = answer->dump();
  return result;
}

}  // namespace kdtree
