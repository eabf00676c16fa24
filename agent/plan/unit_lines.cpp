// SPDX-License-Identifier: Apache-2.0
#include "agent/plan/unit_lines.h"

#include <algorithm>
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <utility>

#include "agent/unitfile/environment.h"
#include "agent/unitfile/quoting.h"
#include "agent/unitfile/unit_file.h"

namespace kdtree {
namespace {

using Assignments = std::map<std::string, std::string>;
using nlohmann::json;

constexpr const char* kRuntimeDirectory = "kdtree/stats";

// One line of UTF-8, whatever stood in the unit.
std::string line_of(const std::string& text) {
  std::string line;
  for (const char c : text) c == '\n' ? line += "\\n" : line += c;
  return json::parse(json(line).dump(-1, ' ', false, json::error_handler_t::replace))
      .get<std::string>();
}

std::string assignment(const std::string& name, const std::string& value) {
  return name + "=" + value;
}

std::string without_doubling(std::string text) {
  for (std::size_t at = 0; (at = text.find("%%", at)) != std::string::npos; ++at) text.erase(at, 1);
  return text;
}

std::vector<UnitFile> parsed(const Facts& facts, const std::string& ours, bool want_ours) {
  std::vector<UnitFile> files;
  for (const auto& file : facts.unit.files)
    if ((file.path == ours) == want_ours)
      if (auto unit = UnitFile::parse(file.text, file.path)) files.push_back(std::move(*unit));
  return files;
}

Assignments assigned_in(const std::vector<UnitFile>& files) {
  return environment_of(files).value_or(Assignments{});
}

std::vector<UnitFile> parsed_text(const std::string& text) {
  auto unit = UnitFile::parse(text, "unit");
  return unit ? std::vector<UnitFile>{std::move(*unit)} : std::vector<UnitFile>{};
}

void set_environment(UnitState& state, const Facts& facts, const Config& config,
                     const EngineUnit& unit) {
  Assignments values(state.environment.begin(), state.environment.end());
  const auto now = assigned_in(parsed(facts, unit.path, true));
  const auto others = assigned_in(parsed(facts, unit.path, false));
  const auto then = assigned_in(parsed_text(unit.text));
  for (const auto& [name, value] : now) {
    if (then.contains(name)) continue;
    const auto other = others.find(name);
    if (other == others.end())
      values.erase(name);
    else
      values[name] = without_doubling(other->second);
  }
  for (const auto& [name, value] : then) {
    const bool theirs_win = config.engine.whole_unit() && others.contains(name);
    const auto before = now.find(name);
    const bool kept = before != now.end() && before->second == value && values.contains(name);
    if (!theirs_win && !kept) values[name] = without_doubling(value);
  }
  state.environment.assign(values.begin(), values.end());
}

void set_command(UnitState& state, const Facts& facts, const EngineUnit& unit) {
  std::vector<UnitFile> files;
  for (const auto& file : facts.unit.files)
    if (auto text = UnitFile::parse(file.text, file.path)) files.push_back(std::move(*text));
  const auto now = effective_values(files, "Service", "ExecStart");
  if (now == std::vector<std::string>{unit.exec_start} || unit.exec_start.empty()) return;
  Assignments expanded;  // words as written now -> as systemd has them
  if (const auto words = now.size() == 1 ? split_words(now[0]) : std::vector<Word>{};
      words && state.exec_start.size() == 1 && words->size() == state.exec_start[0].argv.size())
    for (std::size_t i = 0; i < words->size(); ++i)
      expanded[(*words)[i].text] = state.exec_start[0].argv[i];
  ExecCommand command;
  if (const auto words = split_words(unit.exec_start))
    for (const auto& word : *words) {
      const auto known = expanded.find(word.text);
      command.argv.push_back(known == expanded.end() ? without_doubling(word.text) : known->second);
    }
  state.exec_start = {std::move(command)};
}

void set_files(UnitState& state, const Config& config, const EngineUnit& unit) {
  if (config.engine.whole_unit()) {
    state.load_state = "loaded";
    state.fragment_path = unit.path;
    state.user = config.engine.user;
  } else {
    std::erase(state.drop_in_paths, unit.path);
    const auto name = [](const std::string& path) {
      return std::filesystem::path(path).filename();
    };
    const auto place = std::ranges::find_if(
        state.drop_in_paths, [&](const auto& path) { return name(path) > name(unit.path); });
    if (!unit.text.empty()) state.drop_in_paths.insert(place, unit.path);
  }
  std::erase_if(state.environment_files,
                [](const EnvironmentFile& file) { return file.path == kEngineEnvironment; });
  if (!unit.environment_text.empty())
    state.environment_files.push_back({kEngineEnvironment, false});
  std::erase(state.runtime_directories, kRuntimeDirectory);
  for (const auto& value : effective_values(parsed_text(unit.text), "Service", "RuntimeDirectory"))
    state.runtime_directories.push_back(value);
}

}  // namespace

std::vector<std::string> unit_lines(const UnitState& unit) {
  std::vector<std::string> lines;
  if (!unit.exists()) return lines;
  const auto add = [&](const std::string& key, const std::string& value) {
    if (!value.empty()) lines.push_back(line_of(key + "=" + value));
  };
  add("FragmentPath", unit.fragment_path);
  for (const auto& path : unit.drop_in_paths) add("DropInPaths", path);
  add("User", unit.user);
  add("Group", unit.group);
  add("Slice", unit.slice);
  add("WorkingDirectory", unit.working_directory);
  for (const auto& folder : unit.runtime_directories) add("RuntimeDirectory", folder);
  for (const auto& file : unit.environment_files)
    add("EnvironmentFiles", (file.optional ? "-" : "") + file.path);
  const Assignments environment(unit.environment.begin(), unit.environment.end());
  for (const auto& [name, value] : environment) add("Environment", assignment(name, value));
  for (const auto& command : unit.exec_start) {
    std::string line;
    for (const auto& word : command.argv) {
      if (word.starts_with("--")) add("ExecStart", std::exchange(line, ""));
      line += (line.empty() ? "" : " ") + word;
    }
    add("ExecStart", line);
  }
  return lines;
}

std::vector<std::string> unit_lines_after(const Facts& facts, const Config& config,
                                          const EngineUnit& unit) {
  UnitState state = facts.unit.state;
  set_files(state, config, unit);
  set_environment(state, facts, config, unit);
  set_command(state, facts, unit);
  return unit_lines(state);
}

}  // namespace kdtree
