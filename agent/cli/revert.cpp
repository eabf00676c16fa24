// SPDX-License-Identifier: Apache-2.0
#include "agent/cli/revert.h"

#include <filesystem>
#include <tuple>

#include "agent/systemd/event_log.h"

namespace kdtree {
namespace {

constexpr const char* kTimer = "kdtree-revert";
constexpr std::chrono::seconds kStopDeadline{10};

Status start_revert_timer(Context& context) {
  std::error_code error;
  const auto self = std::filesystem::read_symlink("/proc/self/exe", error);
  if (error) return fail(ExitCode::refused, "/proc/self/exe: " + error.message());
  KDTREE_TRY_ASSIGN(auto services, context.services());
  return services->start_timer({kTimer,
                                "Undo a kdtree change whose kdtreectl has died",
                                {self.string(), "recover", "--unattended"}});
}

Event event_of(const HistoryEntry& entry) {
  if (entry.result == "good") return Event::change_good;
  if (entry.result == "recovered") return Event::change_recovered;
  return entry.result == "rollback failed" ? Event::rollback_failed : Event::change_rolled_back;
}

void tell(const HistoryEntry& entry) {
  log_event(event_of(entry),
            entry.verb + ": " + entry.from + " -> " + entry.to + ", " + entry.result +
                (entry.reason.empty() ? "" : ": " + entry.reason),
            {{"KDTREE_VERB", entry.verb},
             {"KDTREE_FROM", entry.from},
             {"KDTREE_TO", entry.to},
             {"KDTREE_RESULT", entry.result},
             {"KDTREE_REASON", entry.reason},
             {"KDTREE_PLAN", entry.plan},
             {"KDTREE_USER", entry.user},
             {"KDTREE_EVIDENCE", entry.evidence}});
}

}  // namespace

void stop_revert_timer(Context& context) {
  if (auto services = context.services())
    std::ignore = (*services)->stop(std::string(kTimer) + ".timer", kStopDeadline);
}

void add_revert(Context& context, TransactionPorts& ports) {
  if (context.root.is_host()) ports.tell = tell;
  if (ports.services == nullptr) return;
  ports.arm_revert = [&context] { return start_revert_timer(context); };
  ports.disarm_revert = [&context] { stop_revert_timer(context); };
}

}  // namespace kdtree
