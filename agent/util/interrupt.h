// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace kdtree {

// While one lives, SIGINT, SIGTERM and SIGHUP only set a flag, so that a change is undone and not
// torn off. Waiting loops look at interrupted() at least every 250 ms and end with an error.
class InterruptGuard {
 public:
  InterruptGuard();
  ~InterruptGuard();
  InterruptGuard(const InterruptGuard&) = delete;
  InterruptGuard& operator=(const InterruptGuard&) = delete;
};

bool interrupted();

// Forgets an interrupt and takes no further one while the outermost guard lives: going back to the
// old state must not be stopped by the signal that caused it, nor by an impatient second one.
void clear_interrupt();

}  // namespace kdtree
