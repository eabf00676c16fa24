// SPDX-License-Identifier: Apache-2.0
#include "agent/cli/change.h"

#include "agent/gate/health_gate.h"
#include "agent/util/interrupt.h"
#include "agent/util/leftovers.h"

namespace kdtree {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

// A live switch takes a moment: nothing is loaded, ranks follow the control file within 100 ms.
constexpr seconds kLiveDeadline{60};
constexpr seconds kLiveStable{2};

std::string progress_text(const GateProgress& progress) {
  std::string text = progress.stage;
  if (!progress.detail.empty()) text += ": " + progress.detail;
  return text + "  [" + human_duration(progress.elapsed.count()) + " elapsed, at most " +
         human_duration(progress.remaining.count()) + " left]";
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

GateWish wish_of(const GateCall& call, const Config& config, long long timeout_s) {
  GateWish wish;
  wish.unit = call.expect.unit;
  wish.previous_invocation = call.previous_invocation;
  wish.health_url = config.engine.health_url;
  wish.ranks = call.expect.ranks;
  wish.release_id = call.expect.release;
  wish.mode = call.expect.mode;
  wish.generation = call.generation;
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
  ports.say = [&context](const std::string& text) { context.out.note(text); };
  ports.restart_deadline =
      (timeout_s > 0 ? seconds(timeout_s) : config.deadlines.healthy_s) + config.deadlines.stop_s;
  if (!ports.services) return ports;
  const auto started = std::chrono::steady_clock::now();
  ports.tick = [&context, started]() -> Status {
    if (interrupted()) return fail(ExitCode::rolled_back, "interrupted");
    const auto elapsed =
        std::chrono::duration_cast<milliseconds>(std::chrono::steady_clock::now() - started);
    context.out.progress("systemd",
                         "waiting for systemd  [" + human_duration(elapsed.count()) + " elapsed]");
    return {};
  };
  ports.gate = [&context, &config, &manager = *ports.services,
                timeout_s](const GateCall& call) -> Status {
    const auto wish = wish_of(call, config, timeout_s);
    auto report =
        wait_until_healthy(context.root, manager, wish, [&context](const GateProgress& progress) {
          context.out.progress(progress.stage, progress_text(progress));
        });
    context.out.end_progress();
    if (!report) return tl::make_unexpected(report.error());
    for (const auto& note : report->notes) context.out.note("note: " + note);
    context.out.note("healthy after " + human_duration(report->elapsed.count()));
    return {};
  };
  return ports;
}

Result<LockFile> begin_change(Context& context, const std::string& verb) {
  KDTREE_TRY(context.need_root(verb));
  KDTREE_TRY_ASSIGN(auto lock, LockFile::acquire(context.root, verb));
  remove_leftovers(context.root);
  KDTREE_TRY_ASSIGN(auto cut_off, recovery_needed(context.root));
  if (!cut_off) return lock;
  KDTREE_TRY_ASSIGN(auto config, context.config());
  InterruptGuard guard;
  auto result = recover(context.root, RecoverWhen::now, host_ports(context, *config, 0));
  if (!result) return prefixed("finishing an earlier change that was cut off", result.error());
  if (result->code != ExitCode::done)
    return fail(
        result->code,
        "an earlier change (" + result->description + ") could not be undone: " + result->reason,
        state_of_host(context, *config));
  context.out.note(
      std::string("an earlier change was cut off (") + result->description +
      "): " + (result->forward ? "it had passed its gate and is in force" : "it has been undone"));
  return lock;
}

Result<ExitCode> carry_out(Context& context, const Config& config, const Plan& plan,
                           const ChangeOptions& options) {
  const std::string verb(verb_name(plan.verb));
  for (const auto& note : plan.notes) context.out.note("note: " + note);
  if (plan.empty()) {
    context.out.line("nothing to do: " + describe(plan.to) + " is in force");
    return ExitCode::done;
  }
  if (options.dry_run || !options.yes) {
    context.out.line(to_text(plan));
    context.out.line("plan " + plan_hash(plan));
  }
  if (options.dry_run) return ExitCode::done;
  if (!options.yes &&
      !context.out.confirm(plan.restarts_engine ? "Do it? The engine is restarted." : "Do it?"))
    return fail(ExitCode::refused, verb + " was not confirmed, nothing was changed",
                "--yes answers the question");

  InterruptGuard guard;
  const auto started = std::chrono::steady_clock::now();
  KDTREE_TRY_ASSIGN(auto result,
                    apply(context.root, plan, host_ports(context, config, options.timeout_s)));
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

}  // namespace kdtree
