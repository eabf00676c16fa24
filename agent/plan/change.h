// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "agent/plan/journal.h"
#include "agent/plan/step.h"
#include "agent/plan/transaction.h"

// Used inside agent/plan only: what transaction.cpp decides, this does.
namespace kdtree {

// One change in progress: its plan, how far it came, its journal.
class Change {
 public:
  Change(const Root& root, const TransactionPorts& ports, Plan plan, State before, Journal journal)
      : root_(root),
        ports_(ports),
        plan_(std::move(plan)),
        before_(std::move(before)),
        journal_(std::move(journal)),
        runner_(root, ports) {}

  HistoryEntry entry;
  std::vector<std::string> notes;
  std::size_t started = 0;  // steps that may have had an effect
  bool restarted = false;   // the engine may run on the new files

  // Every step, then the gate, then "passed" in the journal.
  Status forward();
  // After "passed" has been recorded: everything from here on can be repeated.
  Status finish_forward(const std::string& result);

  // Before anything is undone: what was tried, why it failed, and what the engine said last.
  void keep_evidence(const std::string& reason);
  // Restores every file and reloads systemd. Goes on after a failure; says the first.
  Status restore_files();
  // After restore_files: the engine as it was, through its gate.
  Status restore_engine();
  // The last way out: the engine without kdtree. Goes on after a failure in a file or in the
  // journal; says the first.
  Status fall_back(bool with_engine);
  // The fallback's files are in force.
  bool fallen() const { return fallen_; }
  // Systemd couldn't be asked to restart or stop the engine: it may still run on files that are
  // gone.
  bool engine_unreached() const { return engine_unreached_; }
  // state.json as before, with this change in its history; or, where fallen(), the engine without
  // kdtree.
  Status record_failure();

 private:
  Status write_trial();
  Status end();
  Status move_engine(const Step& step);

  const Root& root_;
  const TransactionPorts& ports_;
  Plan plan_;
  State before_;
  Journal journal_;
  StepRunner runner_;
  bool fallen_ = false;
  bool engine_unreached_ = false;
};

}  // namespace kdtree
