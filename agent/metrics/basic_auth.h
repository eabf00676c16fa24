// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <deque>
#include <map>
#include <mutex>
#include <string>
#include <string_view>

namespace kdtree {

// Passwords against bcrypt hashes. A check of bcrypt takes tens of milliseconds, a scrape comes
// every few seconds: verdicts are remembered by a digest, keyed with a secret of this process, of
// name, hash and password, each with its length (CVE-2022-46146 came from leaving the lengths out).
class BasicAuth {
 public:
  explicit BasicAuth(std::map<std::string, std::string> users);  // name -> bcrypt hash

  // For any thread. An unknown name takes as long as a wrong password.
  bool allows(std::string_view name, std::string_view password);

 private:
  std::string key_of(std::string_view name, std::string_view hash, std::string_view password) const;

  const std::map<std::string, std::string> users_;
  std::array<char, 32> secret_{};
  std::string nobodys_hash_;
  std::mutex mutex_;
  std::map<std::string, bool> verdicts_;
  std::deque<std::string> order_;  // of verdicts_, oldest first
};

}  // namespace kdtree
