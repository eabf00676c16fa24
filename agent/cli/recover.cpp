// SPDX-License-Identifier: Apache-2.0
#include <memory>

#include "agent/cli/change.h"
#include "agent/cli/verbs.h"
#include "agent/util/interrupt.h"
#include "agent/util/leftovers.h"

namespace kdtree {
namespace {

Result<ExitCode> run_recover(Context& context, bool boot) {
  KDTREE_TRY(context.need_root("recover"));
  KDTREE_TRY_ASSIGN(auto lock, LockFile::acquire(context.root, "recover"));
  remove_leftovers(context.root);
  KDTREE_TRY_ASSIGN(auto needed, recovery_needed(context.root));
  if (!needed) {
    context.out.line("nothing had been cut off");
    return ExitCode::done;
  }
  InterruptGuard guard;
  TransactionPorts ports;
  if (boot) {
    if (auto services = context.services(BusRoute::direct)) ports.services = *services;
    ports.argv = context.argv;
    ports.say = [&context](const std::string& text) { context.out.note(text); };
  } else {
    KDTREE_TRY_ASSIGN(auto config, context.config());
    ports = host_ports(context, *config, 0);
  }
  KDTREE_TRY_ASSIGN(auto result,
                    recover(context.root, boot ? RecoverWhen::boot : RecoverWhen::now, ports));
  context.out.end_progress();
  if (result.code != ExitCode::done)
    return fail(result.code, "could not finish " + result.description + ": " + result.reason,
                "runbook rollback.md");
  context.out.line(result.description + (result.forward ? ": had passed its gate, is in force"
                                                        : ": undone, the old state is in force"));
  return ExitCode::done;
}

}  // namespace

void setup_recover(CLI::App& app, Context& context) {
  auto boot = std::make_shared<bool>(false);
  auto& verb = add_verb(app, context, "recover", "Finish or undo a change that was cut off",
                        [&context, boot] { return run_recover(context, *boot); });
  verb.add_flag("--boot", *boot, "The engine is not running yet: files only, no health gate");
  verb.footer(
      "kdtree-recover.service runs it at boot, before the engine. Every other change does it first "
      "by itself.");
}

}  // namespace kdtree
