// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "agent/util/result.h"

namespace kdtree {

// Reads one JSON object strictly: every key has to be asked for, each value has to be of the asked
// type. The first error stays; ask everything, then finish().
class JsonObject {
 public:
  // `path` names the object in messages: "" for the whole document, "engine" for a member.
  JsonObject(const nlohmann::json& value, std::string path);

  // The member, or null where it isn't given. Makes `key` known.
  const nlohmann::json* find(std::string_view key);
  // As find; not being given is an error.
  const nlohmann::json* need(std::string_view key);

  // Each leaves `target` alone where the key isn't given.
  void text(std::string_view key, std::string& target);
  void boolean(std::string_view key, bool& target);
  void number(std::string_view key, double& target);
  void integer(std::string_view key, long long& target, long long least, long long most);
  void texts(std::string_view key, std::vector<std::string>& target);

  std::string path_of(std::string_view key) const;
  void reject(std::string_view key, const std::string& why, const std::string& hint = {});
  // The first error of all, or an unknown key; an unknown key before a missing one, since it may be
  // the missing one misspelt. Errors: usage.
  Status finish();

 private:
  const nlohmann::json& value_;
  std::string path_;
  std::vector<std::string> known_;
  Status first_;
  bool missing_ = false;  // first_ is a missing key
};

// The candidate with the fewest edits from `word`, if they are at most a third of its length; else
// "".
std::string nearest(std::string_view word, const std::vector<std::string>& candidates);

// A key as messages show it: control characters are '?'.
std::string shown_key(std::string_view key);

}  // namespace kdtree
