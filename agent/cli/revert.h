// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "agent/cli/context.h"
#include "agent/plan/transaction.h"

// A change is on trial until its gate has passed. If kdtreectl dies in the middle of it, a timer
// that lives in PID 1 runs `kdtreectl recover --unattended`, which undoes it as soon as the lock is
// free. A reboot takes the timer away; kdtree-recover.service does it then.
namespace kdtree {

// Fills in arm_revert, disarm_revert and tell, of all ports those that every change has.
void add_revert(Context& context, TransactionPorts& ports);

// The timer isn't needed any more. Says nothing where there is none.
void stop_revert_timer(Context& context);

}  // namespace kdtree
