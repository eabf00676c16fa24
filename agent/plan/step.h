// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "agent/plan/plan.h"
#include "agent/plan/transaction.h"
#include "agent/util/result.h"
#include "agent/util/root.h"

namespace kdtree {

// Carries single steps out. Each can be repeated: what is done already stays done.
class StepRunner {
 public:
  StepRunner(const Root& root, const TransactionPorts& ports) : root_(root), ports_(ports) {}

  Status run(const Step& step);
  // Before a restart of an engine that serves: running requests may finish, new ones find no
  // engine. Ends with the main process or the drain deadline; never fails. A unit that systemd
  // would start again after an orderly end is left to its own way of stopping.
  void drain(const std::string& unit);
  // Brings back what the step changed in files and in the enablement of units; a unit that it
  // started or stopped is not touched. A step that never ran may be undone.
  Status undo(const Step& step);
  // Waits for `expect`: after a restart under another InvocationID than before it; else for every
  // rank to have seen the control file that write_control wrote last.
  Status gate(const GateExpectation& expect, bool restarted);

  // Ranks need not have seen a control file: one that is in the wanted mode already may be slow to
  // look at it.
  void forget_generation() { generation_ = 0; }

 private:
  Status run_file(const Step& step);
  Status run_unit(const Step& step);
  void say(const std::string& text) const;

  const Root& root_;
  const TransactionPorts& ports_;
  std::string previous_invocation_;
  std::uint64_t generation_ = 0;
};

// Is every file that the plan touches as the plan says it is now? Errors: refused, naming the first
// that isn't.
Status check_base(const Root& root, const Plan& plan);

}  // namespace kdtree
