// SPDX-License-Identifier: Apache-2.0
#include "agent/unitfile/environment.h"

#include <glob.h>

#include <algorithm>
#include <filesystem>

namespace kdtree {
namespace {

namespace fs = std::filesystem;

bool is_variable_name(std::string_view name) {
  const auto fits = [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_';
  };
  return !name.empty() && !(name[0] >= '0' && name[0] <= '9') &&
         std::all_of(name.begin(), name.end(), fits);
}

bool is_newline(char c) { return c == '\n' || c == '\r'; }
bool is_blank(char c) { return c == ' ' || c == '\t' || is_newline(c); }

void strip_right(std::string& text, std::size_t least) {
  while (text.size() > least && is_blank(text.back())) text.pop_back();
}

// The states of systemd's own reader.
class EnvironmentReader {
 public:
  std::map<std::string, std::string> read(std::string_view text) {
    for (const char c : text) take(c);
    if (state_ != State::before_key && state_ != State::key && state_ != State::comment) finish();
    return std::move(variables_);
  }

 private:
  enum class State {
    before_key,
    key,
    before_value,
    value,
    value_escape,
    single_quoted,
    double_quoted,
    double_quoted_escape,
    comment,
    comment_escape
  };

  void finish() {
    if (state_ == State::value) strip_right(value_, kept_);
    strip_right(key_, 0);
    if (is_variable_name(key_)) variables_[key_] = value_;
    key_.clear();
    value_.clear();
    kept_ = 0;
    state_ = State::before_key;
  }
  void keep(char c) {
    value_ += c;
    kept_ = value_.size();
  }

  void take(char c) {
    switch (state_) {
      case State::before_key:
        if (c == '#' || c == ';') {
          state_ = State::comment;
        } else if (!is_blank(c)) {
          state_ = State::key;
          key_ = c;
        }
        return;
      case State::key:
        if (is_newline(c)) {
          key_.clear();
          state_ = State::before_key;
        } else if (c == '=') {
          state_ = State::before_value;
        } else {
          key_ += c;
        }
        return;
      case State::before_value:
        return take_before_value(c);
      case State::value:
        if (is_newline(c))
          finish();
        else if (c == '\\')
          state_ = State::value_escape;
        else
          value_ += c;
        return;
      case State::value_escape:
        state_ = State::value;
        if (!is_newline(c)) keep(c);
        return;
      case State::single_quoted:
        if (c == '\'')
          state_ = State::before_value;
        else
          keep(c);
        return;
      case State::double_quoted:
        if (c == '"')
          state_ = State::before_value;
        else if (c == '\\')
          state_ = State::double_quoted_escape;
        else
          keep(c);
        return;
      case State::double_quoted_escape:
        state_ = State::double_quoted;
        if (std::string_view("\"\\`$").find(c) != std::string_view::npos) return keep(c);
        if (c == '\n') return;
        keep('\\');
        return keep(c);
      case State::comment:
        if (c == '\\') state_ = State::comment_escape;
        if (is_newline(c)) state_ = State::before_key;
        return;
      case State::comment_escape:
        state_ = State::comment;
        return;
    }
  }

  void take_before_value(char c) {
    if (is_newline(c))
      finish();
    else if (c == '\'')
      state_ = State::single_quoted;
    else if (c == '"')
      state_ = State::double_quoted;
    else if (c == '\\')
      state_ = State::value_escape;
    else if (!is_blank(c)) {
      state_ = State::value;
      value_ += c;
    }
  }

  State state_ = State::before_key;
  std::string key_, value_;
  std::size_t kept_ = 0;  // bytes of value_ that were quoted or escaped: blanks at their end stay
  std::map<std::string, std::string> variables_;
};

}  // namespace

std::map<std::string, std::string> parse_environment_file(std::string_view text) {
  return EnvironmentReader().read(text);
}

std::vector<std::string> environment_file_paths(const Root& root, const std::string& pattern) {
  std::vector<std::string> paths;
  glob_t found{};
  if (glob(root(pattern).c_str(), 0, nullptr, &found) == 0)
    for (std::size_t i = 0; i < found.gl_pathc; ++i)
      paths.push_back("/" + fs::path(found.gl_pathv[i]).lexically_relative(root.prefix()).string());
  globfree(&found);
  return paths;
}

Result<std::string> quote_for_environment_file(std::string_view value) {
  std::string quoted = "\"";
  for (const char c : value) {
    if (c == '\n' || c == '\0')
      return fail(ExitCode::usage, "a line break can't be put into an environment file");
    if (std::string_view("\"\\`$").find(c) != std::string_view::npos) quoted += '\\';
    quoted += c;
  }
  return quoted + '"';
}

Result<std::map<std::string, std::string>> environment_of(const std::vector<UnitFile>& files) {
  std::map<std::string, std::string> variables;
  for (const auto& value : effective_values(files, "Service", "Environment")) {
    auto words = split_words(value);
    if (!words) return prefixed("Environment=", std::move(words).error());
    for (const auto& word : *words) {
      const std::size_t equals = word.text.find('=');
      if (equals == std::string::npos || !is_variable_name(word.text.substr(0, equals))) continue;
      variables[word.text.substr(0, equals)] = word.text.substr(equals + 1);
    }
  }
  return variables;
}

std::string compose_path_list(const std::string& first, std::string_view rest) {
  std::string list = first;
  while (!rest.empty()) {
    const std::size_t colon = rest.find(':');
    const std::string_view part = rest.substr(0, colon);
    if (!part.empty() && part != first) list += ":" + std::string(part);
    if (colon == std::string_view::npos) break;
    rest.remove_prefix(colon + 1);
  }
  return list;
}

}  // namespace kdtree
