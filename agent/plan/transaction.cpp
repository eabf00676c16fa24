// SPDX-License-Identifier: Apache-2.0
#include "agent/plan/transaction.h"

#include <unistd.h>

#include <nlohmann/json.hpp>
#include <tuple>

#include "agent/plan/journal.h"
#include "agent/plan/step.h"
#include "agent/plan/user.h"
#include "agent/util/clock.h"
#include "agent/util/interrupt.h"

namespace kdtree {
namespace {

using nlohmann::json;
using nlohmann::ordered_json;

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
  std::size_t started = 0;  // steps that may have had an effect
  bool restarted = false;   // the engine may run on the new files

  Status forward() {
    KDTREE_TRY(write_trial());
    for (std::size_t i = 0; i < plan_.steps.size(); ++i) {
      if (interrupted()) return fail(ExitCode::rolled_back, "interrupted");
      const Step& step = plan_.steps[i];
      KDTREE_TRY(journal_.add({{"is", "start"}, {"step", i}}));
      started = i + 1;
      if (step.kind == StepKind::restart_unit) restarted = true;
      KDTREE_TRY(runner_.run(step));
      KDTREE_TRY(journal_.add({{"is", "done"}, {"step", i}}));
    }
    if (!plan_.steps.empty()) KDTREE_TRY(runner_.gate(plan_.gate, plan_.restarts_engine));
    return journal_.add({{"is", "passed"}});
  }

  // After "passed" has been recorded: everything from here on can be repeated.
  Status finish_forward(const std::string& result) {
    entry.result = result;
    plan_.after.history = before_.history;
    plan_.after.history.push_back(entry);
    KDTREE_TRY(write_state(root_, plan_.after));
    for (const auto& step : plan_.cleanup)
      if (auto done = runner_.run(step); !done) notes.push_back(done.error().what);
    return end();
  }

  // Restores every file and reloads systemd. Goes on after a failure; says the first.
  Status restore_files() {
    std::ignore =
        journal_.add({{"is", "undo"}});  // its absence means the same: no "passed", so back
    Status first;
    const auto note = [&](Status status) {
      if (!status && first) first = std::move(status);
    };
    for (std::size_t i = started; i-- > 0;) note(runner_.undo(plan_.steps[i]));
    note(runner_.run(Step{}));
    return first;
  }

  // After restore_files: the engine as it was, through its gate.
  Status restore_engine() {
    if (started == 0) return {};
    if (plan_.undo_gate.unit.empty() && plan_.gate.unit.empty()) return {};
    if (!restarted) {
      if (!plan_.engine_was_active) return {};
      runner_.forget_generation();
      if (runner_.gate(plan_.undo_gate, false)) return {};
    }
    Step step;
    step.unit = plan_.gate.unit;
    step.kind = plan_.engine_was_active ? StepKind::restart_unit : StepKind::stop_unit;
    KDTREE_TRY(runner_.run(step));
    if (!plan_.engine_was_active) return {};
    return runner_.gate(plan_.undo_gate, true);
  }

  // state.json as before, with this change in its history. `cold`: the engine runs without kdtree
  // now.
  Status record_failure(bool cold) {
    State state = before_;
    state.trial = false;
    if (cold) {
      state.current = {plan_.from.release, Mode::off, true};
      state.managed.clear();
    }
    state.history.push_back(entry);
    KDTREE_TRY(write_state(root_, state));
    return end();
  }

  // The engine without kdtree, when going back has failed as well.
  Status fall_back() {
    if (plan_.fallback.empty())
      return fail(ExitCode::rollback_failed, "there is nothing to fall back to");
    KDTREE_TRY(journal_.add({{"is", "fallback"}}));
    for (const auto& step : plan_.fallback) KDTREE_TRY(runner_.run(step));
    KDTREE_TRY(runner_.gate({plan_.gate.unit, 0, {}, Mode::off}, true));
    return {};
  }

  std::vector<std::string> notes;

 private:
  Status write_trial() {
    State trial = before_;
    trial.trial = true;
    trial.current = plan_.to;
    return write_state(root_, trial);
  }

  Status end() {
    if (auto audited = append_audit(root_, entry, ports_.argv); !audited)
      notes.push_back("audit log: " + audited.error().what);
    KDTREE_TRY(journal_.add({{"is", "end"}, {"result", entry.result}}));
    return journal_.put_away(journal_name(entry));
  }

  static std::string journal_name(const HistoryEntry& entry) {
    std::string name;
    for (const char c : entry.time)
      if (c != ':' && c != '-') name += c;
    return name + "-" + entry.verb + "-" + std::to_string(::getpid());
  }

  const Root& root_;
  const TransactionPorts& ports_;
  Plan plan_;
  State before_;
  Journal journal_;
  StepRunner runner_;
};

// Undoes a change and says how that ended. `with_engine`: not at boot, where the engine comes
// later. Files that can't be put back leave the journal where it is: the next kdtreectl tries
// again.
void undo(Change& change, bool with_engine, const std::string& result_if_good,
          TransactionResult& result) {
  clear_interrupt();
  change.entry.result = result_if_good;
  change.entry.reason = result.reason;
  result.code = ExitCode::rolled_back;
  const Status files = change.restore_files();
  const Status engine = with_engine ? change.restore_engine() : Status{};
  bool cold = false;
  if (!files || !engine) {
    result.code = ExitCode::rollback_failed;
    result.undo_reason = files ? engine.error().what : files.error().what;
    change.entry.result = "rollback failed";
    change.entry.reason += "; going back: " + result.undo_reason;
  }
  if (!engine) {
    const auto fallen = change.fall_back();
    cold = fallen.has_value();
    result.undo_reason += cold ? "; the engine runs without kdtree now"
                               : "; starting it without kdtree: " + fallen.error().what;
  }
  if (!files && !cold) return;
  if (auto recorded = change.record_failure(cold); !recorded)
    result.notes.push_back("the old state is in force, but that could not be recorded: " +
                           recorded.error().what + "; the next kdtreectl does it");
}

HistoryEntry entry_of(const Plan& plan, const std::string& hash) {
  HistoryEntry entry;
  entry.time = utc_now();
  entry.verb = verb_name(plan.verb);
  entry.from = describe(plan.from);
  entry.to = describe(plan.to);
  entry.plan = hash;
  entry.user = asking_user();
  entry.forced = plan.forced;
  return entry;
}

// At boot a job for another unit waits for the boot, which waits for the recovery: what is enabled
// comes by itself.
Plan without_jobs(Plan plan) {
  std::erase_if(plan.cleanup, [](const Step& step) {
    return step.kind == StepKind::start_unit || step.kind == StepKind::stop_unit;
  });
  return plan;
}

}  // namespace

Result<TransactionResult> apply(const Root& root, const Plan& plan, const TransactionPorts& ports) {
  KDTREE_TRY(check_base(root, plan));
  KDTREE_TRY_ASSIGN(State before, read_state(root));
  const InterruptGuard guard;
  const HistoryEntry entry = entry_of(plan, plan_hash(plan));
  KDTREE_TRY_ASSIGN(auto journal, Journal::begin(root, {{"time", entry.time},
                                                        {"boot_id", boot_id(root)},
                                                        {"entry", to_json(entry)},
                                                        {"state", to_json(before)},
                                                        {"plan", to_json(plan)}}));
  Change change(root, ports, plan, before, std::move(journal));
  change.entry = entry;

  TransactionResult result;
  if (auto done = change.forward(); !done) {
    result.reason = done.error().what;
    const bool untouched = change.started == 0;
    undo(change, true, untouched ? "refused" : "rolled back", result);
    if (untouched && result.code == ExitCode::rolled_back) {
      Error error = done.error();
      error.code = ExitCode::refused;
      return tl::make_unexpected(std::move(error));
    }
  } else if (auto good = change.finish_forward("good"); !good) {
    // The gate has passed and the journal says so: what is missing is bookkeeping, which recovery
    // repeats.
    result.notes.push_back("the change is in force, but it could not be recorded: " +
                           good.error().what + "; the next kdtreectl ends it");
  }
  result.notes.insert(result.notes.end(), change.notes.begin(), change.notes.end());
  return result;
}

Result<bool> recovery_needed(const Root& root) { return journal_is_there(root); }

Result<RecoverResult> recover(const Root& root, RecoverWhen when, const TransactionPorts& ports) {
  RecoverResult result;
  if (!journal_is_there(root)) return result;
  KDTREE_TRY_ASSIGN(auto records, read_journal(root));
  if (records.empty()) {
    KDTREE_TRY(discard_journal(root));
    return result;
  }
  const json& first = records[0];
  KDTREE_TRY_ASSIGN(Plan plan, parse_plan(first.value("plan", json::object())));
  KDTREE_TRY_ASSIGN(State before, parse_state(first.value("state", json::object()).dump(),
                                              "the journal's state"));
  KDTREE_TRY_ASSIGN(auto journal, Journal::resume(root));
  result.found = true;
  result.description = std::string(verb_name(plan.verb)) + " " + describe(plan.from) + " -> " +
                       describe(plan.to) + ", begun " + first.value("time", "");

  const bool same_boot = first.value("boot_id", "") == boot_id(root);
  if (!same_boot && ports.services != nullptr) {
    // Since then the engine was started anew, or not, by the boot.
    auto unit = ports.services->unit(plan.gate.unit);
    plan.engine_was_active = unit && !unit->has_ended();
  }
  const InterruptGuard guard;
  bool passed = false;
  Change change(root, ports, when == RecoverWhen::boot ? without_jobs(plan) : plan, before,
                std::move(journal));
  change.entry = entry_of(plan, plan_hash(plan));
  for (const json& record : records) {
    const auto is = record.value("is", "");
    if (is == "passed") passed = true;
    if (is == "start")
      change.started = std::max(change.started, record.value("step", std::size_t{0}) + 1);
  }
  change.started = std::min(change.started, plan.steps.size());
  change.restarted = !same_boot;
  for (std::size_t i = 0; i < change.started; ++i)
    if (plan.steps[i].kind == StepKind::restart_unit) change.restarted = true;

  result.forward = passed;
  if (passed) {
    KDTREE_TRY(change.finish_forward("good"));
    return result;
  }
  TransactionResult undone;
  undone.reason = "cut off";
  undo(change, when == RecoverWhen::now, "recovered", undone);
  if (undone.code == ExitCode::rollback_failed) {
    result.code = undone.code;
    result.reason = undone.undo_reason;
  }
  return result;
}

}  // namespace kdtree
