// SPDX-License-Identifier: Apache-2.0
#include "agent/unitfile/engine_command.h"

#include <algorithm>
#include <charconv>
#include <initializer_list>

namespace kdtree {
namespace {

constexpr std::string_view kMemFraction = "--mem-fraction-static";
constexpr std::string_view kExecPrefixes = "@-:+!";

std::string base_name(const std::string& path) { return path.substr(path.rfind('/') + 1); }

bool one_of(const std::string& name, std::initializer_list<std::string_view> names) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

bool is_python(const std::string& path) {
  const std::string name = base_name(path);
  return name.starts_with("python") &&
         name.find_first_not_of("0123456789.", 6) == std::string::npos;
}

bool is_shell(const std::string& name) {
  return one_of(name, {"sh", "bash", "dash", "zsh", "ksh", "fish", "csh", "tcsh", "busybox"});
}

bool is_container_tool(const std::string& name) {
  return one_of(name, {"docker", "podman", "nerdctl", "ctr", "crictl", "kubectl", "apptainer",
                       "singularity", "systemd-nspawn", "lxc-attach", "lxc-start", "lxc", "chroot",
                       "nsenter", "docker-compose"});
}

bool is_privilege_tool(const std::string& name) {
  return one_of(name, {"sudo", "su", "runuser", "doas", "setpriv", "ssh", "gosu", "systemd-run"});
}

bool is_launcher(const std::string& name) {
  return one_of(name, {"numactl", "taskset", "nice", "ionice", "chrt", "stdbuf"});
}

bool is_assignment(const std::string& text) {
  const std::size_t equals = text.find('=');
  return equals != std::string::npos && equals > 0 && text.find('/') > equals && text[0] != '-';
}

bool ours(const std::string& variable) {
  return variable == "PYTHONPATH" || variable.starts_with("KDTREE_");
}

// `$NAME` alone: systemd makes any number of words of it, so it is nobody's value.
bool is_whole_variable(const std::string& text) {
  return text.size() > 1 && text[0] == '$' && text[1] != '$' && text[1] != '{';
}

std::string number_text(double value) {
  char buffer[32];
  return {buffer, std::to_chars(buffer, buffer + sizeof buffer, value).ptr};
}

}  // namespace

Result<EngineCommand> EngineCommand::parse(std::string_view exec_start) {
  EngineCommand command;
  KDTREE_TRY_ASSIGN(auto words, split_words(exec_start));
  std::size_t at = 0;
  for (auto& word : words) {
    const std::size_t begin = exec_start.find(word.raw, at);
    command.items_.push_back({std::string(exec_start.substr(at, begin - at)), word});
    at = begin + word.raw.size();
  }
  command.tail_ = exec_start.substr(at);
  KDTREE_TRY(command.understand());
  return command;
}

std::string EngineCommand::text_at(std::size_t at) const {
  if (at >= items_.size()) return {};
  const std::string& text = items_[at].word.text;
  return at == 0 ? text.substr(std::min(text.size(), text.find_first_not_of(kExecPrefixes))) : text;
}

Status EngineCommand::refuse(const std::string& why, const std::string& hint) const {
  return fail(ExitCode::refused, "ExecStart= of the engine " + shown(why), shown(hint));
}

Status EngineCommand::understand() {
  if (items_.empty())
    return refuse("is empty", "give the unit a command, or give kdtree one in engine.command");
  for (const auto& item : items_)
    if (item.word.raw == ";")
      return refuse("holds several commands (;)", "leave only the engine's in the unit");
  const std::string& first = items_[0].word.text;
  const std::string prefixes = first.substr(0, first.find_first_not_of(kExecPrefixes));
  if (prefixes.find('@') != std::string::npos)
    return refuse("begins with '@'", "write it without the second program name");
  std::size_t at = 0;
  while (true) {
    const std::string word = text_at(at);
    const std::string name = base_name(word);
    if (word.empty()) return refuse("names no program that kdtree knows", "see kdtreectl(8)");
    if (is_shell(name))
      return refuse("runs the shell '" + word + "'",
                    "put the engine's own command there, with Environment= for what the shell set; "
                    "or give it in engine.command");
    if (is_container_tool(name))
      return refuse(
          "runs '" + word + "'",
          "kdtree works where the engine's Python is: run kdtreectl inside that container, "
          "or start the engine from its own unit");
    if (is_privilege_tool(name))
      return refuse("runs '" + word + "'", "put the engine's own command there and use User=");
    if (name == "env") {
      KDTREE_TRY(understand_env(at));
    } else if (is_launcher(name)) {
      for (++at; at < items_.size(); ++at)
        if (text_at(at).starts_with('/') || is_python(text_at(at)) || text_at(at) == "sglang" ||
            text_at(at) == "env" || is_launcher(text_at(at)))
          break;
    } else if (is_python(word)) {
      return understand_python(at);
    } else if (name == "sglang") {
      program_ = word;
      if (text_at(at + 1) != "serve")
        return refuse("runs 'sglang " + text_at(at + 1) + "'", "the engine is 'sglang serve'");
      first_flag_ = at + 2;
      return {};
    } else {
      return refuse("runs '" + word + "', which kdtree doesn't know",
                    "put 'PYTHON -m sglang.launch_server …' or 'sglang serve …' there, or give it "
                    "in engine.command");
    }
  }
}

Status EngineCommand::understand_env(std::size_t& at) {
  for (++at; at < items_.size(); ++at) {
    const std::string word = text_at(at);
    if (is_assignment(word)) {
      const std::string name = word.substr(0, word.find('='));
      if (ours(name))
        return refuse("sets " + name + " with env",
                      "move it to Environment= of the unit: kdtree has to compose it");
      env_assignments_[name] = word.substr(name.size() + 1);
    } else if (word == "-u" || word == "--unset") {
      if (ours(text_at(++at)))
        return refuse("unsets " + text_at(at) + " with env", "leave that out");
    } else if (word == "--") {
      ++at;
      return {};
    } else if (word.starts_with("-")) {
      return refuse("runs env with '" + word + "'", "use env with assignments only");
    } else {
      return {};
    }
  }
  return {};
}

Status EngineCommand::understand_python(std::size_t at) {
  program_ = text_at(at);
  for (++at; at < items_.size(); ++at) {
    const std::string word = text_at(at);
    if (word.size() < 2 || word[0] != '-') break;
    if (word.starts_with("--")) return refuse("runs Python with '" + word + "'", "leave that out");
    for (std::size_t i = 1; i < word.size(); ++i) {
      const char flag = word[i];
      if (flag == 'I' || flag == 'E' || flag == 'S')
        return refuse(std::string("runs Python with -") + flag + ", which ignores " +
                          (flag == 'S' ? "sitecustomize" : "PYTHONPATH"),
                      std::string("leave -") + flag + " out");
      if (flag == 'c')
        return refuse("runs Python with -c", "put '-m sglang.launch_server …' there");
      if (flag == 'X' || flag == 'W') {
        if (i + 1 == word.size()) ++at;
        break;
      }
      if (flag == 'm') {
        const std::string module = i + 1 == word.size() ? text_at(++at) : word.substr(i + 1);
        if (module != "sglang" && !module.starts_with("sglang."))
          return refuse("runs the module '" + module + "', which kdtree doesn't know",
                        "put '-m sglang.launch_server …' there");
        first_flag_ = at + 1;
        if (module == "sglang" && text_at(at + 1) == "serve") ++first_flag_;
        return {};
      }
    }
  }
  const std::string script = text_at(at);
  if (!script.ends_with(".py") && base_name(script) != "sglang")
    return refuse(script.empty() ? "runs Python without a program"
                                 : "runs '" + script + "', which kdtree doesn't know",
                  "put '-m sglang.launch_server …' there");
  first_flag_ = at + 1;
  if (base_name(script) == "sglang" && text_at(at + 1) == "serve") ++first_flag_;
  return {};
}

std::string EngineCommand::text() const {
  std::string text;
  for (const auto& item : items_) text += item.gap + item.word.raw;
  return text + tail_;
}

std::vector<std::string> EngineCommand::words() const {
  std::vector<std::string> words;
  for (const auto& item : items_) words.push_back(item.word.text);
  return words;
}

std::vector<std::string> EngineCommand::variables() const {
  std::vector<std::string> names;
  for (const auto& item : items_)
    for (auto& name : referenced_variables(item.word.text)) names.push_back(std::move(name));
  return names;
}

// argparse takes the last of several: that one counts.
std::optional<std::size_t> EngineCommand::find_flag(const std::string& name) const {
  for (std::size_t at = items_.size(); at-- > first_flag_;) {
    const std::string& text = items_[at].word.text;
    if (text == name || text.starts_with(name + "=")) return at;
  }
  return std::nullopt;
}

std::size_t EngineCommand::end_of_flag(std::size_t at) const {
  if (items_[at].word.text.find('=') != std::string::npos) return at + 1;
  std::size_t end = at + 1;
  while (end < items_.size() && !items_[end].word.text.starts_with("--") &&
         !is_whole_variable(items_[end].word.text))
    ++end;
  return end;
}

void EngineCommand::erase(std::size_t begin, std::size_t end) {
  items_.erase(items_.begin() + static_cast<std::ptrdiff_t>(begin),
               items_.begin() + static_cast<std::ptrdiff_t>(end));
}

void EngineCommand::insert(std::size_t at, const std::vector<std::string>& literals) {
  for (const auto& literal : literals) {
    const std::string raw = quote_for_exec(literal);
    const auto words = split_words(raw);
    items_.insert(items_.begin() + static_cast<std::ptrdiff_t>(at++), {" ", words->front()});
  }
}

Status EngineCommand::check_value_of(const std::string& name) const {
  const auto at = find_flag(name);
  if (!at || items_[*at].word.text != name || *at + 1 >= items_.size()) return {};
  const std::string& next = items_[*at + 1].word.text;
  if (!is_whole_variable(next)) return {};
  return refuse("has " + next + " right after " + name + ": its value, or other flags?",
                "write the value itself, or put " + next + " elsewhere");
}

Status EngineCommand::check_editable(const std::vector<std::string>& names) const {
  for (const auto& name : names) KDTREE_TRY(check_value_of(name));
  return {};
}

Result<std::optional<double>> EngineCommand::mem_fraction() const {
  const std::string name(kMemFraction);
  const auto at = find_flag(name);
  if (!at) return std::nullopt;
  const std::string& word = items_[*at].word.text;
  const std::string value = word == name
                                ? (*at + 1 < items_.size() ? items_[*at + 1].word.text : "")
                                : word.substr(name.size() + 1);
  double fraction = 0;
  const auto parsed = std::from_chars(value.data(), value.data() + value.size(), fraction);
  if (parsed.ec != std::errc{} || parsed.ptr != value.data() + value.size())
    return fail(ExitCode::refused,
                "ExecStart= of the engine gives " + name + " as '" + shown(value) + "'",
                "write the number itself there");
  return fraction;
}

std::optional<std::string> EngineCommand::value_of(const std::vector<std::string>& names) const {
  std::optional<std::size_t> last;
  for (const auto& name : names)
    if (const auto at = find_flag(name); at && (!last || *at > *last)) last = at;
  if (!last) return std::nullopt;
  const std::string& word = items_[*last].word.text;
  if (const std::size_t equals = word.find('='); equals != std::string::npos)
    return word.substr(equals + 1);
  return *last + 1 < items_.size() ? items_[*last + 1].word.text : "";
}

void EngineCommand::set_mem_fraction(double fraction) {
  const std::string name(kMemFraction);
  const auto at = find_flag(name);
  if (at && items_[*at].word.text != name) {
    const std::string raw = name + "=" + number_text(fraction);
    items_[*at].word = {raw, raw};
    return;
  }
  add_flags({name, number_text(fraction)});
}

void EngineCommand::add_flags(const std::vector<std::string>& flags) {
  for (std::size_t begin = 0; begin < flags.size();) {
    std::size_t end = begin + 1;
    while (end < flags.size() && !flags[end].starts_with("--")) ++end;
    const std::vector<std::string> one(flags.begin() + static_cast<std::ptrdiff_t>(begin),
                                       flags.begin() + static_cast<std::ptrdiff_t>(end));
    std::size_t place = items_.size();
    if (const auto at = find_flag(one[0].substr(0, one[0].find('=')))) {
      erase(*at, end_of_flag(*at));
      place = *at;
    }
    insert(place, one);
    begin = end;
  }
}

void EngineCommand::remove_flags(const std::vector<std::string>& names) {
  for (const auto& name : names)
    while (const auto at = find_flag(name)) erase(*at, end_of_flag(*at));
}

}  // namespace kdtree
