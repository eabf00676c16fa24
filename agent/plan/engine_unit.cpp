// SPDX-License-Identifier: Apache-2.0
#include "agent/plan/engine_unit.h"

#include <algorithm>
#include <charconv>
#include <filesystem>

#include "agent/unitfile/engine_command.h"
#include "agent/unitfile/environment.h"
#include "agent/unitfile/quoting.h"
#include "agent/unitfile/unit_file.h"
#include "agent/util/root.h"

namespace kdtree {
namespace {

namespace fs = std::filesystem;
using Variables = std::vector<std::pair<std::string, std::string>>;

constexpr std::string_view kModeValue = "KDTREE_VERIFY=";
constexpr std::string_view kHead = "# Written by kdtreectl";

bool is_ours(const std::string& variable) {
  return variable == "PYTHONPATH" || variable.starts_with("KDTREE_");
}

std::string number_text(double value) {
  char buffer[32];
  return {buffer, std::to_chars(buffer, buffer + sizeof buffer, value).ptr};
}

// The unit without our part: every other file, and which of them systemd applies after ours.
struct Base {
  std::vector<UnitFile> files;
  std::vector<TextFile> later;
  std::map<std::string, std::string> environment;  // Environment=, `%` as written
  std::map<std::string, std::string> from_files;   // EnvironmentFile=, literal
};

Result<Base> read_base(const Facts& facts, const Config& config) {
  Base base;
  const std::string ours = engine_unit_path(config);
  for (const TextFile& file : facts.unit.files) {
    if (file.path == ours) continue;
    KDTREE_TRY_ASSIGN(auto parsed, UnitFile::parse(file.text, file.path));
    base.files.push_back(std::move(parsed));
    const bool drop_in = fs::path(file.path).parent_path().extension() == ".d";
    if (drop_in && (config.engine.whole_unit() ||
                    fs::path(file.path).filename().string() > paths::kDropInName))
      base.later.push_back(file);
  }
  for (const auto& [name, value] : facts.unit.manager_environment)
    base.environment[name] = escape_specifiers(value);
  for (const auto& [name, value] : config.engine.environment)
    base.environment[name] = escape_specifiers(value);
  KDTREE_TRY_ASSIGN(auto assigned, environment_of(base.files));
  for (auto& [name, value] : assigned) base.environment[name] = std::move(value);
  for (const auto& file : facts.unit.environment_files) {
    if (file.path == kEngineEnvironment) continue;
    for (auto& [name, value] : parse_environment_file(file.text)) base.from_files[name] = value;
  }
  return base;
}

Result<std::string> base_command(const Base& base, const Config& config) {
  if (config.engine.whole_unit()) {
    std::string text;
    for (const auto& word : config.engine.command)
      text += (text.empty() ? "" : " ") + quote_for_exec(word);
    return text;
  }
  const auto commands = effective_values(base.files, "Service", "ExecStart");
  if (commands.size() != 1)
    return fail(ExitCode::refused,
                config.engine.unit + " has " +
                    (commands.empty() ? "no" : std::to_string(commands.size())) + " ExecStart=",
                "the engine's unit needs exactly one");
  return commands[0];
}

Status refuse_override(const std::string& path, const std::string& what) {
  return fail(ExitCode::refused, path + " comes after kdtree's part of the unit and sets " + what,
              "rename it so that it sorts before " + std::string(paths::kDropInName) +
                  ", or remove that line");
}

Status check_later(const TextFile& file, bool exec_changes, bool environment_file) {
  KDTREE_TRY_ASSIGN(auto parsed, UnitFile::parse(file.text, file.path));
  for (const auto& line : parsed.lines()) {
    if (line.kind != UnitLine::Kind::setting || line.section != "Service") continue;
    if (line.key == "ExecStart" && exec_changes) return refuse_override(file.path, "ExecStart=");
    if (line.key == "RuntimeDirectory" && line.value.empty())
      return refuse_override(file.path, "RuntimeDirectory= to nothing");
    if (line.key == "EnvironmentFile" && environment_file)
      return refuse_override(file.path, "EnvironmentFile=");
    if (line.key != "Environment") continue;
    if (line.value.empty()) return refuse_override(file.path, "Environment= to nothing");
    KDTREE_TRY_ASSIGN(auto words, split_words(line.value));
    for (const auto& word : words)
      if (const auto name = word.text.substr(0, word.text.find('=')); is_ours(name))
        return refuse_override(file.path, name);
  }
  return {};
}

Status check_unset(const Base& base) {
  for (const auto& value : effective_values(base.files, "Service", "UnsetEnvironment")) {
    KDTREE_TRY_ASSIGN(auto words, split_words(value));
    for (const auto& word : words)
      if (const auto name = word.text.substr(0, word.text.find('=')); is_ours(name))
        return fail(ExitCode::refused, "the engine's unit has UnsetEnvironment=" + name,
                    "remove that: it would take kdtree's environment away");
  }
  return {};
}

Status check_sandbox(const Sandbox& sandbox, const std::string& unit) {
  const auto refuse = [&](const std::string& what, const std::string& hint) {
    return fail(ExitCode::refused, unit + " has " + what, hint);
  };
  if (sandbox.dynamic_user)
    return refuse("DynamicUser=yes, which hides its stats files from the agent",
                  "give it a fixed user with User=");
  if (!sandbox.root_directory.empty() || !sandbox.root_image.empty())
    return refuse("a root of its own (RootDirectory= or RootImage=)",
                  "kdtree can only serve an engine that sees the host's files");
  for (const auto& path : sandbox.inaccessible_paths)
    for (const char* needed : {paths::kReleases, paths::kStats})
      if (std::string(needed).starts_with(
              path.substr(path.find('/') == std::string::npos ? 0 : path.find('/'))))
        return refuse("InaccessiblePaths=" + path,
                      std::string("the engine has to reach ") + needed);
  return {};
}

Status check_flag(const std::string& flag, const std::string& variable, const std::string& value) {
  if ((" " + value).find(" " + flag) == std::string::npos) return {};
  return fail(ExitCode::refused,
              "the engine's command line takes " + flag + " from the variable " + variable,
              "write " + flag + " into ExecStart= itself");
}

// The command line in `mode`; its variables hide nothing that is edited.
Result<EngineCommand> command_of_mode(const std::string& base_text, const Base& base,
                                      const ModeConfig& mode) {
  KDTREE_TRY_ASSIGN(auto command, EngineCommand::parse(base_text));
  std::vector<std::string> edited;
  for (const auto* flags : {&mode.add_flags, &mode.remove_flags})
    for (const auto& flag : *flags)
      if (flag.starts_with("--")) edited.push_back(flag.substr(0, flag.find('=')));
  if (mode.mem_fraction_static) edited.emplace_back("--mem-fraction-static");
  for (const auto& name : command.variables()) {
    const auto in_file = base.from_files.find(name);
    const auto in_unit = base.environment.find(name);
    const std::string value = in_file != base.from_files.end()    ? in_file->second
                              : in_unit != base.environment.end() ? in_unit->second
                                                                  : "";
    for (const auto& flag : edited) KDTREE_TRY(check_flag(flag, name, value));
  }
  KDTREE_TRY(command.check_editable(edited));
  command.remove_flags(mode.remove_flags);
  command.add_flags(mode.add_flags);
  if (mode.mem_fraction_static) {
    KDTREE_TRY(command.mem_fraction());
    command.set_mem_fraction(*mode.mem_fraction_static);
  }
  return command;
}

Variables our_variables(const Facts& facts, const Config& config, const Deployed& target) {
  const fs::path release = fs::path(paths::kReleases) / target.release;
  Variables variables = {
      {"KDTREE_VERIFY", std::string(to_string(target.mode))},
      {"KDTREE_LIB", (release / "lib/libkdtree_torch.so").string()},
      {"KDTREE_STATS_DIR", paths::kStats},
      {"KDTREE_CONTROL", paths::kControl},
      {"KDTREE_DEFRAG_SORT", config.kernel.defrag_sort ? "1" : "0"},
      {"KDTREE_NSPLIT", config.kernel.nsplit},
      {"KDTREE_MAX_ULP", number_text(config.validate.max_ulp)},
      {"KDTREE_MEAN_ULP", number_text(config.validate.mean_ulp)},
  };
  if (facts.release && facts.state.accepted_engines.contains(facts.release->engine_fingerprint))
    variables.emplace_back("KDTREE_ACCEPT_ENGINE", facts.release->engine_fingerprint);
  return variables;
}

std::string assignment(const std::string& name, const std::string& value) {
  return name + "=" + value;
}

// One Environment= line; `value` is literal.
std::string environment_line(const std::string& name, const std::string& value) {
  return "Environment=" + quote_for_setting(assignment(name, value)) + "\n";
}

bool assigns(const Variables& variables, const std::string& name) {
  return std::ranges::any_of(variables, [&](const auto& each) { return each.first == name; });
}

struct Written {
  std::string settings;          // lines of [Service]
  std::string environment_text;  // of our EnvironmentFile, "" = not needed
};

Result<Written> write_environment(const Facts& facts, const Config& config, const Base& base,
                                  const Deployed& target) {
  Written written;
  const Variables variables = our_variables(facts, config, target);
  for (const auto& [name, value] : variables) {
    written.settings += environment_line(name, value);
    if (base.from_files.contains(name)) {
      KDTREE_TRY_ASSIGN(auto quoted, quote_for_environment_file(value));
      written.environment_text += assignment(name, quoted + "\n");
    }
  }
  const std::string python = (fs::path(paths::kReleases) / target.release / "python").string();
  const auto inherited = base.environment.find("PYTHONPATH");
  written.settings +=
      "Environment=" +
      quote_word("PYTHONPATH=" +
                 compose_path_list(escape_specifiers(python), inherited == base.environment.end()
                                                                  ? std::string_view()
                                                                  : inherited->second)) +
      "\n";
  if (const auto set = base.from_files.find("PYTHONPATH"); set != base.from_files.end()) {
    KDTREE_TRY_ASSIGN(auto quoted,
                      quote_for_environment_file(compose_path_list(python, set->second)));
    written.environment_text += "PYTHONPATH=" + quoted + "\n";
  }
  for (const auto& [name, value] : base.from_files)
    if (name.starts_with("KDTREE_") && !assigns(variables, name))
      written.environment_text += assignment(name, "\n");
  if (!written.environment_text.empty())
    written.settings += std::string("EnvironmentFile=") + kEngineEnvironment + "\n";
  // Made, owned by the engine's user and writable under any ProtectSystem=, at each start.
  written.settings += "RuntimeDirectory=kdtree/stats\n";
  return written;
}

std::string head_of(const Deployed& target) {
  return std::string(kHead) + " for " +
         (target.none() || target.cold ? "an engine without kdtree" : target.release) +
         "; change it with kdtreectl only.\n";
}

std::string whole_unit_text(const Config& config, const Deployed& target,
                            const std::string& settings, const std::string& exec_start) {
  std::string text = head_of(target) +
                     "[Unit]\n"
                     "Description=Inference engine\n"
                     "Wants=network-online.target\n"
                     "After=network-online.target\n"
                     "\n"
                     "[Service]\n"
                     "Type=exec\n";
  if (!config.engine.user.empty()) text += "User=" + escape_specifiers(config.engine.user) + "\n";
  for (const auto& [name, value] : config.engine.environment) text += environment_line(name, value);
  text += settings;
  text += "ExecStart=" + exec_start + "\n";
  text += "Restart=on-failure\nRestartSec=5\n";
  text += "TimeoutStopSec=" + std::to_string(config.deadlines.stop_s.count()) + "\n";
  return text + "\n[Install]\nWantedBy=multi-user.target\n";
}

void note_command(const EngineCommand& base, const EngineCommand& command, const Config& config,
                  const Deployed& target, std::vector<std::string>& notes) {
  const auto before = base.mem_fraction();
  const auto after = command.mem_fraction();
  if (before && after && *before != *after)
    notes.push_back("mode " + std::string(to_string(target.mode)) + ": --mem-fraction-static " +
                    (*before ? number_text(**before) : "(not given)") + " -> " +
                    (*after ? number_text(**after) : "(not given)"));
  const std::string& program = command.program();
  if (program.starts_with('/') && program.find("python") != std::string::npos &&
      program != config.engine.python)
    notes.push_back("the unit runs " + program + ", the configuration names " +
                    config.engine.python +
                    " as engine.python: they have to be the same environment");
}

}  // namespace

std::string engine_unit_path(const Config& config) {
  const fs::path dir = "/etc/systemd/system";
  if (config.engine.whole_unit()) return (dir / config.engine.unit).string();
  return (dir / (config.engine.unit + ".d") / paths::kDropInName).string();
}

bool is_written_by_kdtree(const std::string& unit_text) { return unit_text.starts_with(kHead); }

std::string without_mode(const std::string& unit_text) {
  const auto parsed = UnitFile::parse(unit_text, "unit");
  if (!parsed) return unit_text;
  std::string rest;
  for (const auto& line : parsed->lines()) {
    if (line.kind != UnitLine::Kind::setting || line.section != "Service") continue;
    const bool is_mode = line.key == "Environment" && line.value.starts_with(kModeValue) &&
                         line.value.find_first_of(" \t") == std::string::npos;
    if (!is_mode) rest += line.key + "=" + line.value + "\n";
  }
  return rest;
}

std::string exec_start_of(const std::string& unit_text) {
  const auto parsed = UnitFile::parse(unit_text, "unit");
  const auto values =
      parsed ? effective_values({*parsed}, "Service", "ExecStart") : std::vector<std::string>{};
  return values.empty() ? "" : values.back();
}

Result<EngineUnit> make_engine_unit(const Facts& facts, const Config& config,
                                    const Deployed& target) {
  EngineUnit unit;
  unit.path = engine_unit_path(config);
  unit.environment_path = kEngineEnvironment;
  KDTREE_TRY_ASSIGN(const Base base, read_base(facts, config));
  const bool plain = target.none() || target.cold;
  if (target.none() && !facts.unit.state.exists()) return unit;
  KDTREE_TRY_ASSIGN(unit.base_exec_start, base_command(base, config));
  unit.exec_start = unit.base_exec_start;
  if (plain && !config.engine.whole_unit()) return unit;
  if (plain) {
    unit.text = whole_unit_text(config, target, "", unit.exec_start);
    return unit;
  }

  KDTREE_TRY_ASSIGN(auto base_parsed, EngineCommand::parse(unit.base_exec_start));
  KDTREE_TRY_ASSIGN(auto command, command_of_mode(unit.base_exec_start, base,
                                                  config.mode(target.command_line())));
  unit.exec_start = command.text();
  note_command(base_parsed, command, config, target, unit.notes);
  KDTREE_TRY_ASSIGN(auto written, write_environment(facts, config, base, target));
  unit.environment_text = written.environment_text;
  const bool exec_changes = unit.exec_start != unit.base_exec_start;
  for (const auto& file : base.later)
    KDTREE_TRY(check_later(file, exec_changes || config.engine.whole_unit(),
                           !written.environment_text.empty()));
  KDTREE_TRY(check_unset(base));
  KDTREE_TRY(check_sandbox(facts.unit.state.sandbox, config.engine.unit));

  if (config.engine.whole_unit()) {
    unit.text = whole_unit_text(config, target, written.settings, unit.exec_start);
  } else {
    unit.text = head_of(target) + "[Service]\n" + written.settings;
    if (exec_changes) unit.text += "ExecStart=\nExecStart=" + unit.exec_start + "\n";
  }
  return unit;
}

}  // namespace kdtree
