// SPDX-License-Identifier: Apache-2.0
#include "agent/metrics/basic_auth.h"

#include <crypt.h>
#include <sys/random.h>

#include <memory>

#include "agent/util/sha256.h"

namespace kdtree {
namespace {

constexpr std::size_t kRemembered = 100;
// Of a password that nobody has; for the time that it takes.
constexpr const char* kNobodys = "$2b$10$abcdefghijklmnopqrstuuvwxyzABCDEFGHIJKLMNOPQRSTUVWXY";

bool equal(std::string_view a, std::string_view b) {
  if (a.size() != b.size()) return false;
  unsigned char differs = 0;
  for (std::size_t i = 0; i < a.size(); ++i)
    differs = static_cast<unsigned char>(differs | (a[i] ^ b[i]));
  return differs == 0;
}

bool fits(const std::string& password, const std::string& hash) {
  const auto scratch = std::make_unique<crypt_data>();
  const char* made = ::crypt_r(password.c_str(), hash.c_str(), scratch.get());
  return made != nullptr && equal(made, hash);
}

}  // namespace

BasicAuth::BasicAuth(std::map<std::string, std::string> users)
    : users_(std::move(users)), nobodys_hash_(kNobodys) {
  if (::getrandom(secret_.data(), secret_.size(), 0) != static_cast<ssize_t>(secret_.size()))
    secret_ = {};
  // As costly as theirs.
  if (!users_.empty()) nobodys_hash_.replace(4, 2, users_.begin()->second.substr(4, 2));
}

std::string BasicAuth::key_of(std::string_view name, std::string_view hash,
                              std::string_view password) const {
  std::string text(secret_.data(), secret_.size());
  for (const std::string_view part : {name, hash, password})
    ((text += std::to_string(part.size())) += ':') += part;
  return sha256_hex(text);
}

bool BasicAuth::allows(std::string_view name, std::string_view password) {
  const auto found = users_.find(std::string(name));
  const std::string& hash = found != users_.end() ? found->second : nobodys_hash_;
  const std::string key = key_of(name, hash, password);
  {
    const std::lock_guard lock(mutex_);
    const auto known = verdicts_.find(key);
    if (known != verdicts_.end()) return known->second;
  }
  const bool fit = password.find('\0') == std::string_view::npos &&
                   fits(std::string(password), hash) && found != users_.end();
  const std::lock_guard lock(mutex_);
  if (verdicts_.emplace(key, fit).second) order_.push_back(key);
  if (order_.size() > kRemembered) {
    verdicts_.erase(order_.front());
    order_.pop_front();
  }
  return fit;
}

}  // namespace kdtree
