// SPDX-License-Identifier: Apache-2.0
#include "agent/util/interrupt.h"

#include <atomic>
#include <csignal>
#include <iterator>

namespace kdtree {
namespace {

constexpr int kSignals[] = {SIGINT, SIGTERM, SIGHUP};
std::atomic<bool> was_interrupted{false};
std::atomic<bool> ignoring{false};
static_assert(std::atomic<bool>::is_always_lock_free);
struct sigaction previous[std::size(kSignals)];
int guards = 0;

void note_signal(int) {
  if (!ignoring.load()) was_interrupted.store(true);
}

}  // namespace

InterruptGuard::InterruptGuard() {
  if (guards++ > 0) return;
  was_interrupted.store(false);
  ignoring.store(false);
  struct sigaction action {};
  action.sa_handler = note_signal;
  for (std::size_t i = 0; i < std::size(kSignals); ++i)
    ::sigaction(kSignals[i], &action, &previous[i]);
}

InterruptGuard::~InterruptGuard() {
  if (--guards > 0) return;
  for (std::size_t i = 0; i < std::size(kSignals); ++i)
    ::sigaction(kSignals[i], &previous[i], nullptr);
}

bool interrupted() { return was_interrupted.load(); }

void clear_interrupt() {
  ignoring.store(true);
  was_interrupted.store(false);
}

}  // namespace kdtree
