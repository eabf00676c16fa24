// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "agent/cli/context.h"
#include "agent/cli/verbs.h"
#include "agent/plan/plan.h"
#include "agent/plan/transaction.h"
#include "agent/util/lock_file.h"

// What every verb that changes the host does around its plan.
namespace kdtree {

// Root, the lock, and the end of a change that was cut off earlier (said on stderr). Hold the lock
// until the verb ends. Errors: refused (not root), locked (who holds it), rollback_failed (the
// cut-off change can't be finished).
Result<LockFile> begin_change(Context& context, const std::string& verb);

// The ports of a transaction on this host: the health gate with the configuration's deadlines (or
// `timeout_s`), progress on stderr. `context` and `config` must outlive it.
TransactionPorts host_ports(Context& context, const Config& config, long long timeout_s);

// Shows the plan (always with --dry-run, and before asking), asks unless --yes, applies it through
// the health gate and says how it ended. ExitCode::done also for a plan with nothing to do and for
// --dry-run. Errors: refused (not confirmed, or apply's own), rolled_back, rollback_failed; each
// with the reason and what to do.
Result<ExitCode> carry_out(Context& context, const Config& config, const Plan& plan,
                           const ChangeOptions& options);

}  // namespace kdtree
