// SPDX-License-Identifier: Apache-2.0
#include "agent/plan/change.h"

#include <unistd.h>

#include <chrono>
#include <optional>
#include <tuple>

#include "agent/plan/evidence.h"
#include "agent/util/interrupt.h"
#include "agent/util/sha256.h"

namespace kdtree {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::size_t kEvidenceKept = 20;

std::string journal_name(const HistoryEntry& entry) {
  std::string name;
  for (const char c : entry.time)
    if (c != ':' && c != '-') name += c;
  return name + "-" + entry.verb + "-" + std::to_string(::getpid());
}

}  // namespace

Status Change::forward() {
  std::optional<Clock::time_point> restarted_at;
  KDTREE_TRY(write_trial());
  for (std::size_t i = 0; i < plan_.steps.size(); ++i) {
    if (interrupted()) return fail(ExitCode::rolled_back, "interrupted");
    const Step& step = plan_.steps[i];
    KDTREE_TRY(journal_.add({{"is", "start"}, {"step", i}}));
    started = i + 1;
    if (step.kind == StepKind::restart_unit) {
      restarted = true;
      runner_.drain(step.unit);
      restarted_at = Clock::now();
    }
    KDTREE_TRY(runner_.run(step));
    KDTREE_TRY(journal_.add({{"is", "done"}, {"step", i}}));
  }
  if (!plan_.steps.empty()) KDTREE_TRY(runner_.gate(plan_.gate, plan_.restarts_engine));
  if (restarted_at && !plan_.gate.unit.empty())
    plan_.after.last_start =
        std::chrono::duration_cast<std::chrono::milliseconds>(Clock::now() - *restarted_at);
  return journal_.add({{"is", "passed"}});
}

Status Change::finish_forward(const std::string& result) {
  entry.result = result;
  plan_.after.history = before_.history;
  plan_.after.history.push_back(entry);
  KDTREE_TRY(write_state(root_, plan_.after));
  for (const auto& step : plan_.cleanup)
    if (auto done = runner_.run(step); !done) notes.push_back(done.error().what);
  return end();
}

void Change::keep_evidence(const std::string& reason) {
  if (started == 0) return;
  std::string text = to_text(plan_) + "\nfailed: " + reason + "\n";
  if (ports_.last_lines && !plan_.gate.unit.empty()) {
    text += "\nlast lines of " + plan_.gate.unit + ":\n";
    for (const auto& line : ports_.last_lines(plan_.gate.unit)) text += "  " + line + "\n";
  }
  if (auto kept = write_evidence(root_, journal_name(entry), text, kEvidenceKept))
    entry.evidence = *kept;
  else
    notes.push_back("the evidence could not be kept: " + kept.error().what);
}

Status Change::restore_files() {
  std::ignore = journal_.add({{"is", "undo"}});  // its absence means the same: no "passed", so back
  Status first;
  const auto note = [&](Status status) {
    if (!status && first) first = std::move(status);
  };
  for (std::size_t i = started; i-- > 0;) note(runner_.undo(plan_.steps[i]));
  note(runner_.run(Step{}));
  return first;
}

Status Change::restore_engine() {
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
  KDTREE_TRY(move_engine(step));
  if (!plan_.engine_was_active) return {};
  return runner_.gate(plan_.undo_gate, true);
}

Status Change::move_engine(const Step& step) {
  auto done = runner_.run(step);
  engine_unreached_ = !done && done.error().code == ExitCode::refused;
  return done;
}

Status Change::fall_back(bool with_engine) {
  if (plan_.fallback.empty())
    return fail(ExitCode::rollback_failed, "there is nothing to fall back to");
  // Without the record a later recovery goes back once more, fails, and comes here again.
  std::ignore = journal_.add({{"is", "fallback"}});
  Status first;
  for (const auto& step : plan_.fallback) {
    const bool of_engine = step.kind == StepKind::restart_unit;
    if (of_engine && first) fallen_ = true;
    if (of_engine && !with_engine) break;
    auto done = of_engine ? move_engine(step) : runner_.run(step);
    if (!done && first) first = std::move(done);
  }
  if (!first || !with_engine) return first;
  return runner_.gate({plan_.gate.unit, 0, {}, Mode::off}, true);
}

Status Change::record_failure() {
  State state = before_;
  state.trial = false;
  if (fallen_) {
    state.current = {plan_.from.release, Mode::off, true};
    state.managed.clear();
    for (const auto& step : plan_.fallback)
      if (step.kind == StepKind::write_file && step.after)
        state.managed[step.path] = sha256_hex(step.after->bytes);
  }
  state.history.push_back(entry);
  KDTREE_TRY(write_state(root_, state));
  return end();
}

Status Change::write_trial() {
  State trial = before_;
  trial.trial = true;
  trial.current = plan_.to;
  if (!trial.configuration) trial.configuration = plan_.after.configuration;
  return write_state(root_, trial);
}

Status Change::end() {
  if (auto audited = append_audit(root_, entry, ports_.argv); !audited)
    notes.push_back("audit log: " + audited.error().what);
  KDTREE_TRY(journal_.add({{"is", "end"}, {"result", entry.result}}));
  auto ended = journal_.put_away(journal_name(entry));
  if (ports_.tell) ports_.tell(entry);
  return ended;
}

}  // namespace kdtree
