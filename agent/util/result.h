// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <tl/expected.hpp>
#include <utility>

// The whole error vocabulary. Errors are values until main(), which prints one and turns its code
// into an exit status.
namespace kdtree {

// What the process exits with. Frozen: scripts branch on these.
enum class ExitCode : int {
  done = 0,             // done, or answered and the answer is good
  bad_answer = 1,       // answered and the answer is bad: doctor failure, drift, mismatch
  usage = 2,            // the command line or the configuration is wrong
  refused = 3,          // not done, nothing changed
  rolled_back = 4,      // tried, failed, the old state is in force again
  rollback_failed = 5,  // tried, failed, and so did going back; the host's state is printed
  locked = 6,           // another kdtreectl is at work
};

// One failure, ready to be read by an operator.
struct Error {
  ExitCode code = ExitCode::refused;
  std::string what;  // what went wrong and where, in one line, no trailing dot or newline
  std::string hint;  // what to do next, in one line; empty where `what` says it all
};

template <typename T>
using Result = tl::expected<T, Error>;
using Status = Result<void>;

inline tl::unexpected<Error> fail(ExitCode code, std::string what, std::string hint = {}) {
  return tl::make_unexpected(Error{code, std::move(what), std::move(hint)});
}

// Puts what the caller was doing in front of what went wrong.
inline tl::unexpected<Error> prefixed(const std::string& doing, Error error) {
  error.what = doing + ": " + error.what;
  return tl::make_unexpected(std::move(error));
}

}  // namespace kdtree

#define KDTREE_CONCAT_(a, b) a##b
#define KDTREE_CONCAT(a, b) KDTREE_CONCAT_(a, b)

// KDTREE_TRY(expr): returns expr's error from the calling function, drops its value.
#define KDTREE_TRY(...)                                                           \
  do {                                                                            \
    auto kdtree_try_ = (__VA_ARGS__);                                             \
    if (!kdtree_try_) return tl::make_unexpected(std::move(kdtree_try_).error()); \
  } while (false)

// KDTREE_TRY_ASSIGN(auto x, expr): as KDTREE_TRY, and x takes the value.
#define KDTREE_TRY_ASSIGN(target, ...)                                                   \
  auto KDTREE_CONCAT(kdtree_try_, __LINE__) = (__VA_ARGS__);                             \
  if (!KDTREE_CONCAT(kdtree_try_, __LINE__))                                             \
    return tl::make_unexpected(std::move(KDTREE_CONCAT(kdtree_try_, __LINE__)).error()); \
  target = std::move(*KDTREE_CONCAT(kdtree_try_, __LINE__))
