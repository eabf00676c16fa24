// SPDX-License-Identifier: Apache-2.0
#include "agent/config/json_object.h"

#include <algorithm>
#include <numeric>

namespace kdtree {
namespace {

std::size_t edits(std::string_view a, std::string_view b) {
  std::vector<std::size_t> row(b.size() + 1);
  std::iota(row.begin(), row.end(), std::size_t{0});
  for (std::size_t i = 1; i <= a.size(); ++i) {
    std::size_t diagonal = row[0];
    row[0] = i;
    for (std::size_t j = 1; j <= b.size(); ++j) {
      const std::size_t change = diagonal + (a[i - 1] == b[j - 1] ? 0 : 1);
      diagonal = row[j];
      row[j] = std::min({row[j] + 1, row[j - 1] + 1, change});
    }
  }
  return row[b.size()];
}

bool is_control(unsigned char c) { return c < 0x20 || c == 0x7f; }

bool has_control_character(const std::string& text) {
  return std::any_of(text.begin(), text.end(), is_control);
}

}  // namespace

std::string shown_key(std::string_view key) {
  std::string text(key);
  std::replace_if(text.begin(), text.end(), is_control, '?');
  return text;
}

std::string nearest(std::string_view word, const std::vector<std::string>& candidates) {
  std::string best;
  std::size_t least = std::max<std::size_t>(1, word.size() / 3) + 1;
  for (const auto& candidate : candidates) {
    const std::size_t distance = edits(word, candidate);
    if (distance < least) {
      least = distance;
      best = candidate;
    }
  }
  return best;
}

JsonObject::JsonObject(const nlohmann::json& value, std::string path)
    : value_(value), path_(std::move(path)) {
  if (!value_.is_object())
    first_ = fail(ExitCode::usage, (path_.empty() ? "the document" : path_) + " is not an object");
}

std::string JsonObject::path_of(std::string_view key) const {
  return path_.empty() ? shown_key(key) : path_ + "." + shown_key(key);
}

void JsonObject::reject(std::string_view key, const std::string& why, const std::string& hint) {
  if (first_) first_ = fail(ExitCode::usage, path_of(key) + " " + why, hint);
}

const nlohmann::json* JsonObject::find(std::string_view key) {
  known_.emplace_back(key);
  if (!value_.is_object()) return nullptr;
  const auto found = value_.find(key);
  return found == value_.end() ? nullptr : &*found;
}

const nlohmann::json* JsonObject::need(std::string_view key) {
  const auto* member = find(key);
  if (member == nullptr) {
    missing_ = missing_ || first_.has_value();
    reject(key, "is missing");
  }
  return member;
}

void JsonObject::text(std::string_view key, std::string& target) {
  const auto* member = find(key);
  if (member == nullptr) return;
  if (!member->is_string()) return reject(key, "is not a string");
  target = member->get<std::string>();
  if (has_control_character(target)) reject(key, "holds a control character");
}

void JsonObject::boolean(std::string_view key, bool& target) {
  const auto* member = find(key);
  if (member == nullptr) return;
  if (!member->is_boolean()) return reject(key, "is neither true nor false");
  target = member->get<bool>();
}

void JsonObject::number(std::string_view key, double& target) {
  const auto* member = find(key);
  if (member == nullptr) return;
  if (!member->is_number()) return reject(key, "is not a number");
  target = member->get<double>();
}

void JsonObject::integer(std::string_view key, long long& target, long long least, long long most) {
  const auto* member = find(key);
  if (member == nullptr) return;
  const bool fits = member->is_number_integer() &&
                    !(member->is_number_unsigned() &&
                      member->get<unsigned long long>() > static_cast<unsigned long long>(most));
  if (!fits || member->get<long long>() < least || member->get<long long>() > most)
    return reject(
        key, "is not a whole number from " + std::to_string(least) + " to " + std::to_string(most));
  target = member->get<long long>();
}

void JsonObject::texts(std::string_view key, std::vector<std::string>& target) {
  const auto* member = find(key);
  if (member == nullptr) return;
  const bool strings =
      member->is_array() &&
      std::all_of(member->begin(), member->end(), [](const auto& v) { return v.is_string(); });
  if (!strings) return reject(key, "is not a list of strings");
  target = member->get<std::vector<std::string>>();
  if (std::any_of(target.begin(), target.end(), has_control_character))
    reject(key, "holds a control character");
}

Status JsonObject::finish() {
  if ((!first_ && !missing_) || !value_.is_object()) return first_;
  for (const auto& [key, ignored] : value_.items()) {
    if (std::find(known_.begin(), known_.end(), key) != known_.end()) continue;
    const std::string close = nearest(key, known_);
    return fail(ExitCode::usage, "unknown key " + path_of(key),
                close.empty() ? "" : "did you mean " + path_of(close) + "?");
  }
  return first_;
}

}  // namespace kdtree
