// SPDX-License-Identifier: Apache-2.0
#include <memory>
#include <thread>

#include "agent/cli/change.h"
#include "agent/cli/revert.h"
#include "agent/cli/verbs.h"
#include "agent/util/interrupt.h"
#include "agent/util/leftovers.h"

namespace kdtree {
namespace {

struct Options {
  bool boot = false;
  bool unattended = false;
  bool dry_run = false;
};

// Another recovery (of the timer, or at boot) does what is asked for here: it is waited for.
Result<LockFile> acquire(Context& context) {
  const InterruptGuard guard;
  while (true) {
    auto lock = LockFile::acquire(context.root, "recover");
    if (lock || lock.error().code != ExitCode::locked ||
        lock.error().what.find("kdtreectl recover ") == std::string::npos)
      return lock;
    if (interrupted()) return fail(ExitCode::locked, "interrupted; " + lock.error().what);
    context.out.progress("waiting", "waiting: " + lock.error().what);
    std::this_thread::sleep_for(std::chrono::milliseconds(200));
  }
}

TransactionPorts boot_ports(Context& context) {
  TransactionPorts ports;
  if (auto services = context.services(BusRoute::direct)) ports.services = *services;
  ports.argv = context.argv;
  ports.say = [&context](const std::string& text) { context.out.note(text); };
  add_revert(context, ports);
  return ports;
}

Result<ExitCode> end_cut_off(Context& context, const Options& options) {
  const InterruptGuard guard;
  TransactionPorts ports;
  if (options.boot) {
    ports = boot_ports(context);
  } else {
    KDTREE_TRY_ASSIGN(auto config, context.config_or_recorded());
    ports = host_ports(context, *config, 0);
  }
  KDTREE_TRY_ASSIGN(
      auto result,
      recover(context.root, options.boot ? RecoverWhen::boot : RecoverWhen::now, ports));
  context.out.end_progress();
  for (const auto& note : result.notes) context.out.note("note: " + note);
  if (result.code != ExitCode::done)
    return fail(result.code, "could not finish " + result.description + ": " + result.reason,
                "runbook rollback.md");
  context.out.line(!result.found    ? "a change had been cut off before it began"
                   : result.forward ? result.description + ": had passed its gate, is in force"
                                    : result.description + ": undone, the old state is in force");
  return ExitCode::done;
}

Result<ExitCode> run_recover(Context& context, const Options& options) {
  KDTREE_TRY(context.need_root("recover"));
  if (options.dry_run) {
    KDTREE_TRY_ASSIGN(const auto what, describe_cut_off(context.root));
    context.out.line(what.empty() ? "nothing had been cut off"
                                  : what + ": would be undone, or finished if its gate had passed");
    return ExitCode::done;
  }
  auto lock = options.unattended ? LockFile::acquire(context.root, "recover") : acquire(context);
  // Somebody is at work: the change that the timer is there for may be well.
  if (!lock && options.unattended && lock.error().code == ExitCode::locked) return ExitCode::done;
  if (!lock) return tl::make_unexpected(std::move(lock).error());
  remove_leftovers(context.root);
  KDTREE_TRY_ASSIGN(const bool needed, recovery_needed(context.root));
  Result<ExitCode> ended = ExitCode::done;
  if (needed)
    ended = end_cut_off(context, options);
  else if (!options.unattended)
    context.out.line("nothing had been cut off");
  // One try: what didn't work now is for a person, not to be repeated every half minute.
  if (!options.boot && context.root.is_host()) stop_revert_timer(context);
  return ended;
}

}  // namespace

void setup_recover(CLI::App& app, Context& context) {
  auto options = std::make_shared<Options>();
  auto& verb = add_verb(app, context, "recover", "Finish or undo a change that was cut off",
                        [&context, options] { return run_recover(context, *options); });
  verb.add_flag("--boot", options->boot,
                "The engine is not running yet: files only, no health gate");
  verb.add_flag("--unattended", options->unattended,
                "End quietly where another kdtreectl is at work");
  verb.add_flag("--dry-run", options->dry_run, "Say what was cut off, and do nothing");
  verb.footer(
      "kdtree-recover.service runs it at boot, before the engine; a timer in systemd "
      "(kdtree-revert.timer) runs it while a change is on trial, should its kdtreectl die. Every "
      "other "
      "change does it first, after asking.");
}

}  // namespace kdtree
