// SPDX-License-Identifier: Apache-2.0
#include "agent/cli/change.h"

#include "agent/cli/revert.h"
#include "agent/gate/health_gate.h"
#include "agent/gate/unit_journal.h"
#include "agent/util/interrupt.h"
#include "agent/util/leftovers.h"

namespace kdtree {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

// A live switch takes a moment: nothing is loaded, ranks follow the control file within 100 ms.
constexpr seconds kLiveDeadline{60};
constexpr seconds kLiveStable{2};
constexpr std::size_t kLinesKept = 60;

std::string progress_text(const GateProgress& progress,
                          const std::optional<milliseconds>& last_start) {
  std::string text = progress.stage;
  if (!progress.detail.empty()) text += ": " + progress.detail;
  return text + "  [" + human_duration(progress.elapsed.count()) + " elapsed, " +
         (last_start ? "the last start took " + human_duration(last_start->count()) + ", " : "") +
         "at most " + human_duration(progress.remaining.count()) + " left]";
}

std::string state_of_host(Context& context, const Config& config) {
  std::string text;
  if (auto state = read_state(context.root)) text = "state.json says " + describe(state->current);
  if (auto services = context.services()) {
    if (auto unit = (*services)->unit(config.engine.unit))
      text +=
          (text.empty() ? "" : "; ") + unit->name + " is " + unit->active_state + " (" +
          unit->sub_state + ")" +
          (unit->need_daemon_reload ? ", its files are newer than what systemd has loaded" : "");
  }
  return text;
}

// What a restart means for those who use the engine.
std::string outage(Context& context, const Plan& plan) {
  const auto state = read_state(context.root);
  std::string text = "the engine is restarted and answers nobody meanwhile; " +
                     (state && state->last_start
                          ? "the last start took " + human_duration(state->last_start->count())
                          : std::string("how long a start takes here is not known yet"));
  const auto config = context.config_or_recorded();
  const auto services = context.services();
  if (!config || !services || !plan.engine_was_active) return text;
  const auto unit = (*services)->unit(plan.gate.unit);
  const auto drain = (*config)->deadlines.drain_s;
  if (!unit || !unit->is_active()) return text;
  if (drain.count() == 0) return text + "; running requests are cut off (deadlines.drain_s is 0)";
  if (unit->restarts_after_success())
    return text + "; running requests are cut off (Restart=" + unit->restart + ")";
  return text + "; running requests get up to " +
         human_duration(std::chrono::milliseconds(drain).count()) + " to finish";
}

GateWish wish_of(const GateCall& call, const Config& config, long long timeout_s) {
  GateWish wish;
  wish.unit = call.expect.unit;
  wish.previous_invocation = call.previous_invocation;
  wish.health_url = config.engine.health_url;
  wish.ranks = call.expect.ranks;
  wish.release_id = call.expect.release;
  wish.mode = call.expect.mode;
  wish.generation = call.generation;
  wish.golden = config.gate.golden;
  wish.gpu_free_bytes = config.gate.gpu_free_mib << 20;
  wish.deadline = timeout_s > 0 ? seconds(timeout_s) : config.deadlines.healthy_s;
  wish.stable = config.deadlines.stable_s;
  if (!call.restarted) {
    wish.deadline = std::min<milliseconds>(wish.deadline, kLiveDeadline);
    wish.stable = std::min<milliseconds>(wish.stable, kLiveStable);
  }
  return wish;
}

}  // namespace

TransactionPorts host_ports(Context& context, const Config& config, long long timeout_s) {
  TransactionPorts ports;
  auto services = context.services();
  ports.services = services ? *services : nullptr;
  ports.argv = context.argv;
  ports.drain_deadline = config.deadlines.drain_s;
  ports.say = [&context](const std::string& text) { context.out.note(text); };
  ports.restart_deadline =
      (timeout_s > 0 ? seconds(timeout_s) : config.deadlines.healthy_s) + config.deadlines.stop_s;
  add_revert(context, ports);
  if (!ports.services) return ports;
  ports.last_lines = [&context, &manager = *ports.services](const std::string& unit) {
    const auto state = manager.unit(unit);
    return state ? UnitJournal::last_lines(context.root, state->invocation_id, kLinesKept)
                 : std::vector<std::string>{};
  };
  const auto started = std::chrono::steady_clock::now();
  ports.tick = [&context, started]() -> Status {
    if (interrupted()) return fail(ExitCode::rolled_back, "interrupted");
    const auto elapsed =
        std::chrono::duration_cast<milliseconds>(std::chrono::steady_clock::now() - started);
    context.out.progress("systemd",
                         "waiting for systemd  [" + human_duration(elapsed.count()) + " elapsed]");
    return {};
  };
  const auto state = read_state(context.root);
  const auto last_start = state ? state->last_start : std::nullopt;
  ports.gate = [&context, &config, &manager = *ports.services, timeout_s,
                last_start](const GateCall& call) -> Status {
    const auto wish = wish_of(call, config, timeout_s);
    const auto expected = call.restarted ? last_start : std::nullopt;
    auto report = wait_until_healthy(
        context.root, manager, wish, [&context, &expected](const GateProgress& progress) {
          context.out.progress(progress.stage, progress_text(progress, expected));
        });
    context.out.end_progress();
    if (!report) return tl::make_unexpected(report.error());
    for (const auto& note : report->notes) context.out.note("note: " + note);
    context.out.note("healthy after " + human_duration(report->elapsed.count()));
    return {};
  };
  return ports;
}

Result<LockFile> begin_change(Context& context, const std::string& verb,
                              const ChangeOptions& options) {
  KDTREE_TRY(context.need_root(verb));
  KDTREE_TRY_ASSIGN(auto lock, LockFile::acquire(context.root, verb));
  remove_leftovers(context.root);
  KDTREE_TRY_ASSIGN(auto cut_off, recovery_needed(context.root));
  if (!cut_off) return lock;
  KDTREE_TRY_ASSIGN(auto config, context.config_or_recorded());
  KDTREE_TRY_ASSIGN(const auto what, describe_cut_off(context.root));
  if (!what.empty()) {
    context.out.note("an earlier change was cut off: " + what);
    if (!options.yes && !context.out.confirm("Undo it first, or finish it if its gate had passed?"))
      return fail(ExitCode::refused, verb + " can't begin before that is ended",
                  "kdtreectl recover ends it; --yes answers the question");
  }
  InterruptGuard guard;
  auto result = recover(context.root, RecoverWhen::now, host_ports(context, *config, 0));
  context.out.end_progress();
  if (!result) return prefixed("ending an earlier change that was cut off", result.error());
  stop_revert_timer(context);
  for (const auto& note : result->notes) context.out.note("note: " + note);
  if (result->code != ExitCode::done)
    return fail(
        result->code,
        "an earlier change (" + result->description + ") could not be undone: " + result->reason,
        state_of_host(context, *config));
  if (result->found)
    context.out.note(result->forward ? "it had passed its gate and is in force"
                                     : "it has been undone");
  return lock;
}

Result<bool> review(Context& context, const Plan& plan, const ChangeOptions& options) {
  const std::string verb(verb_name(plan.verb));
  const std::string hash = plan_hash(plan);
  if (!options.plan.empty() && options.plan != hash)
    return fail(ExitCode::refused, "the plan is " + hash + " now, not " + options.plan,
                "the host has changed since: look at kdtreectl plan " + verb + " again");
  for (const auto& note : plan.notes) context.out.note("note: " + note);
  if (plan.empty()) {
    context.out.line(nothing_to_do(plan));
    return false;
  }
  if (options.dry_run || !options.yes) {
    context.out.line(to_text(plan));
    context.out.line("plan " + hash);
  }
  if (plan.restarts_engine) context.out.note(outage(context, plan));
  if (options.dry_run) {
    if (auto cut_off = recovery_needed(context.root); cut_off && *cut_off)
      context.out.note("note: an earlier change was cut off; this one would end it first");
    return false;
  }
  if (!options.yes &&
      !context.out.confirm(plan.restarts_engine ? "Do it? The engine is restarted." : "Do it?"))
    return fail(ExitCode::refused, verb + " was not confirmed, nothing was changed",
                "--yes answers the question");
  return true;
}

Result<ExitCode> carry_out_reviewed(Context& context, const Config& config, const Plan& plan,
                                    const ChangeOptions& options,
                                    const std::function<Status()>& also) {
  const std::string verb(verb_name(plan.verb));
  InterruptGuard guard;
  const auto started = std::chrono::steady_clock::now();
  auto ports = host_ports(context, config, options.timeout_s);
  if (also && ports.gate)
    ports.gate = [health = ports.gate, &also, wanted = plan.gate](const GateCall& call) -> Status {
      KDTREE_TRY(health(call));
      return call.expect == wanted ? also() : Status{};
    };
  KDTREE_TRY_ASSIGN(auto result, apply(context.root, plan, ports));
  context.out.end_progress();
  for (const auto& note : result.notes) context.out.note("note: " + note);
  const auto took = human_duration(
      std::chrono::duration_cast<milliseconds>(std::chrono::steady_clock::now() - started).count());
  switch (result.code) {
    case ExitCode::done:
      context.out.line(verb + ": " + describe(plan.from) + " -> " + describe(plan.to) +
                       ", good after " + took);
      return ExitCode::done;
    case ExitCode::rolled_back:
      return fail(ExitCode::rolled_back, verb + " failed: " + result.reason,
                  describe(plan.from) + " is in force again; kdtreectl history keeps the reason");
    default:
      return fail(
          result.code,
          verb + " failed: " + result.reason + "; going back failed too: " + result.undo_reason,
          state_of_host(context, config) + "; runbook rollback.md");
  }
}

Result<ExitCode> carry_out(Context& context, const Config& config, const Plan& plan,
                           const ChangeOptions& options, const std::function<Status()>& also) {
  KDTREE_TRY_ASSIGN(const bool wanted, review(context, plan, options));
  return wanted ? carry_out_reviewed(context, config, plan, options, also) : ExitCode::done;
}

}  // namespace kdtree
