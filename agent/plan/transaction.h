// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <functional>
#include <string>

#include "agent/plan/plan.h"
#include "agent/systemd/service_manager.h"
#include "agent/util/result.h"
#include "agent/util/root.h"

// Carrying a plan out so that whatever happens in the middle, the host ends in the old state or in
// the new one.
//
// journal: begin (plan with what every file held) -> state.json marked trial -> each step: started,
// done -> gate -> gate passed -> state.json good -> end. Whoever finds a journal without an end
// decides from it alone: gate passed = forward; going back had failed and the engine was being
// started without kdtree = that again; else back.
namespace kdtree {

struct GateCall {
  GateExpectation expect;
  bool restarted = false;           // the engine was started anew: loading takes its time
  std::string previous_invocation;  // the InvocationID from before that; "" = it had none
  std::uint64_t generation = 0;  // control generation that every rank must have reached; 0 = none
};

struct TransactionPorts {
  ServiceManager* services = nullptr;  // null under another root than "/": unit steps are left out
  std::function<Status(const GateCall&)> gate;  // empty: nothing to wait for
  std::function<void(const std::string&)> say;  // one line for each step; may be empty
  JobTick tick;                                 // while systemd works
  std::chrono::milliseconds restart_deadline{std::chrono::minutes(35)};
  std::chrono::milliseconds drain_deadline{0};  // 0 = running requests are not waited for
  std::vector<std::string> argv;                // for the audit log

  // Sees to it that somebody else recovers if we die from here on, and that nobody does so any
  // more. apply() calls them around a change; may be empty. Errors: nothing is begun.
  std::function<Status()> arm_revert;
  std::function<void()> disarm_revert;
  // The engine's last lines, asked for before a failed change is undone; may be empty.
  std::function<std::vector<std::string>(const std::string& unit)> last_lines;
  // Tells the system's log how a change ended; may be empty.
  std::function<void(const HistoryEntry& entry)> tell;
};

struct TransactionResult {
  ExitCode code = ExitCode::done;  // done, rolled_back or rollback_failed
  std::string reason;              // why it was undone; "" if done
  std::string undo_reason;         // why undoing failed; "" if it didn't
  std::vector<std::string> notes;  // cleanup that failed
};

// The caller holds the lock and has recovered from an earlier crash. Errors: refused: the journal
// or the state could not be written, or a file is no longer what the plan says: nothing was
// changed.
Result<TransactionResult> apply(const Root& root, const Plan& plan, const TransactionPorts& ports);

// Is there a change that was cut off?
Result<bool> recovery_needed(const Root& root);

enum class RecoverWhen {
  boot,  // the engine is not running yet: files only, and a reload
  now,   // the engine may be running on the new files: restart it if the cut-off change did
};

struct RecoverResult {
  bool found = false;              // false: nothing had been cut off
  bool forward = false;            // the change had passed its gate and is in force
  std::string description;         // "mode 0.1.0-abc off -> validate, cut off 17:30:46 UTC"
  ExitCode code = ExitCode::done;  // rollback_failed: what could not be put back is in `reason`
  std::string reason;
  std::vector<std::string> notes;  // what could not be done and endangers nothing
};

// What a cut-off change was, as RecoverResult::description; "" where nothing was cut off. Errors:
// refused: the journal can't be read.
Result<std::string> describe_cut_off(const Root& root);

Result<RecoverResult> recover(const Root& root, RecoverWhen when, const TransactionPorts& ports);

}  // namespace kdtree
