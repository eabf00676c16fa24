// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>

#include "agent/cli/context.h"
#include "agent/cli/verbs.h"
#include "agent/plan/plan.h"
#include "agent/plan/transaction.h"
#include "agent/util/lock_file.h"

// What every verb that changes the host does around its plan.
namespace kdtree {

// Root, the lock, and the end of a change that was cut off earlier: said, and done after a question
// (unless --yes). Hold the lock until the verb ends. Errors: refused (not root, not confirmed),
// locked (who holds it), rollback_failed (the cut-off change can't be finished).
Result<LockFile> begin_change(Context& context, const std::string& verb,
                              const ChangeOptions& options);

// The ports of a transaction on this host: the health gate with the configuration's deadlines (or
// `timeout_s`), progress on stderr, and the timer in systemd that recovers if we die (revert.h).
// `context` and `config` must outlive it.
TransactionPorts host_ports(Context& context, const Config& config, long long timeout_s);

// Shows the plan and what it means (always with --dry-run, and before asking) and asks unless
// --yes. False: there is nothing (more) to do: an empty plan, --dry-run. Errors: refused: not
// confirmed, or the plan isn't the one that --plan names.
Result<bool> review(Context& context, const Plan& plan, const ChangeOptions& options);

// Applies what was reviewed, through the health gate, and says how it ended. `also`: what must hold
// besides, asked when the gate is open; may be empty. Errors: apply's own, rolled_back,
// rollback_failed; each with the reason and what to do.
Result<ExitCode> carry_out_reviewed(Context& context, const Config& config, const Plan& plan,
                                    const ChangeOptions& options,
                                    const std::function<Status()>& also = {});

// Both; ExitCode::done also where there is nothing to do.
Result<ExitCode> carry_out(Context& context, const Config& config, const Plan& plan,
                           const ChangeOptions& options, const std::function<Status()>& also = {});

}  // namespace kdtree
