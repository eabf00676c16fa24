// SPDX-License-Identifier: Apache-2.0
#include "agent/plan/transaction.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <tuple>

#include "agent/plan/change.h"
#include "agent/plan/journal.h"
#include "agent/plan/user.h"
#include "agent/util/clock.h"
#include "agent/util/interrupt.h"

namespace kdtree {
namespace {

using nlohmann::json;
using nlohmann::ordered_json;

void record(Change& change, TransactionResult& result) {
  if (change.engine_unreached()) {
    result.undo_reason +=
        "; systemd could not be asked for the engine: run 'kdtreectl recover' again";
    return;
  }
  if (auto recorded = change.record_failure(); !recorded)
    result.notes.push_back("how the change ended could not be recorded: " + recorded.error().what +
                           "; the next kdtreectl does it");
}

// Going back has failed: the engine without kdtree.
void fall_back(Change& change, bool with_engine, TransactionResult& result) {
  result.code = ExitCode::rollback_failed;
  change.entry.result = "rollback failed";
  const auto done = change.fall_back(with_engine);
  result.undo_reason += done ? (with_engine ? "; the engine runs without kdtree now"
                                            : "; the engine starts without kdtree")
                             : "; starting it without kdtree: " + done.error().what;
}

// Undoes a change and says how that ended. `with_engine`: not at boot, where the engine comes
// later. Files that can't be put back, or an engine that systemd couldn't be asked for, leave the
// journal where it is: the next kdtreectl tries again.
void undo(Change& change, bool with_engine, const std::string& result_if_good,
          TransactionResult& result) {
  clear_interrupt();
  change.entry.result = result_if_good;
  change.entry.reason = result.reason;
  result.code = ExitCode::rolled_back;
  change.keep_evidence(result.reason);
  const Status files = change.restore_files();
  const Status engine = with_engine ? change.restore_engine() : Status{};
  if (!files || !engine) {
    result.code = ExitCode::rollback_failed;
    result.undo_reason = files ? engine.error().what : files.error().what;
    change.entry.result = "rollback failed";
    change.entry.reason += "; going back: " + result.undo_reason;
  }
  if (!engine) fall_back(change, with_engine, result);
  if (files || change.fallen()) record(change, result);
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

std::string description(const Plan& plan, const json& first) {
  return std::string(verb_name(plan.verb)) + " " + describe(plan.from) + " -> " +
         describe(plan.to) + ", begun " + first.value("time", "");
}

class RevertGuard {
 public:
  explicit RevertGuard(const TransactionPorts& ports) : ports_(ports) {
    if (ports_.arm_revert) armed_ = ports_.arm_revert();
  }
  ~RevertGuard() {
    if (ports_.disarm_revert) ports_.disarm_revert();
  }
  RevertGuard(const RevertGuard&) = delete;
  RevertGuard& operator=(const RevertGuard&) = delete;
  const Status& armed() const { return armed_; }

 private:
  const TransactionPorts& ports_;
  Status armed_;
};

}  // namespace

Result<std::string> describe_cut_off(const Root& root) {
  KDTREE_TRY_ASSIGN(const auto records, read_journal(root));
  if (records.empty()) return std::string();
  KDTREE_TRY_ASSIGN(const Plan plan, parse_plan(records[0].value("plan", json::object())));
  return description(plan, records[0]);
}

Result<TransactionResult> apply(const Root& root, const Plan& plan, const TransactionPorts& ports) {
  KDTREE_TRY(check_base(root, plan));
  KDTREE_TRY_ASSIGN(State before, read_state(root));
  const InterruptGuard guard;
  const RevertGuard revert(ports);
  KDTREE_TRY(revert.armed());
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
  result.description = description(plan, first);

  const bool same_boot = first.value("boot_id", "") == boot_id(root);
  if (!same_boot && ports.services != nullptr) {
    // Since then the engine was started anew, or not, by the boot.
    auto unit = ports.services->unit(plan.gate.unit);
    plan.engine_was_active = unit && !unit->has_ended();
  }
  const InterruptGuard guard;
  bool passed = false;
  bool falling = false;
  Change change(root, ports, when == RecoverWhen::boot ? without_jobs(plan) : plan, before,
                std::move(journal));
  change.entry = entry_of(plan, plan_hash(plan));
  for (const json& record : records) {
    const auto is = record.value("is", "");
    if (is == "passed") passed = true;
    if (is == "fallback") falling = true;
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
    result.notes = change.notes;
    return result;
  }
  TransactionResult undone;
  undone.reason = "cut off";
  const bool with_engine = when == RecoverWhen::now;
  if (falling) {
    change.entry.reason = undone.reason;
    undone.undo_reason = "going back had failed";
    fall_back(change, with_engine, undone);
    if (change.fallen()) record(change, undone);
  } else {
    undo(change, with_engine, "recovered", undone);
  }
  if (undone.code == ExitCode::rollback_failed) {
    result.code = undone.code;
    result.reason = undone.undo_reason;
  }
  result.notes = undone.notes;
  result.notes.insert(result.notes.end(), change.notes.begin(), change.notes.end());
  return result;
}

}  // namespace kdtree
