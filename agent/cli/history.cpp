// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <memory>
#include <nlohmann/json.hpp>
#include <sstream>

#include "agent/cli/verbs.h"
#include "agent/plan/evidence.h"
#include "agent/plan/state.h"

namespace kdtree {
namespace {

struct Options {
  bool json = false;
  std::size_t last = 20;
  bool full = false;
};

// Each change with what is kept of it: its diff, and the engine's last lines if it failed.
void print_full(Context& context, const std::vector<HistoryEntry>& entries) {
  for (const auto& entry : entries) {
    context.out.line(entry.time + "  " + entry.verb + (entry.forced ? " (forced)" : "") + "  " +
                     entry.from + " -> " + entry.to);
    context.out.pairs({{"  user", entry.user.empty() ? "-" : entry.user},
                       {"  result", entry.result},
                       {"  reason", entry.reason.empty() ? "-" : entry.reason},
                       {"  plan", entry.plan},
                       {"  evidence", entry.evidence.empty() ? "-" : entry.evidence}});
    if (entry.evidence.empty()) continue;
    const auto text = read_evidence(context.root, entry.evidence);
    if (!text || !*text) {
      context.out.note(text ? entry.evidence + " is not kept any more" : text.error().what);
      continue;
    }
    std::istringstream lines(**text);
    for (std::string line; std::getline(lines, line);) context.out.line("    " + line);
  }
}

Result<ExitCode> run_history(Context& context, const Options& options) {
  KDTREE_TRY_ASSIGN(auto state, read_state(context.root));
  auto& entries = state.history;
  const auto skip = entries.size() - std::min(entries.size(), options.last);
  entries.erase(entries.begin(), entries.begin() + static_cast<std::ptrdiff_t>(skip));
  if (options.json) {
    auto all = to_json(state);
    context.out.json(all.contains("history") ? all["history"] : nlohmann::ordered_json::array());
    return ExitCode::done;
  }
  if (entries.empty()) {
    context.out.line("nothing has been changed on this host yet");
    return ExitCode::done;
  }
  if (options.full) {
    print_full(context, entries);
    return ExitCode::done;
  }
  std::vector<std::vector<std::string>> rows;
  rows.reserve(entries.size());
  for (const auto& entry : entries)
    rows.push_back({entry.time, entry.user.empty() ? "-" : entry.user,
                    entry.verb + (entry.forced ? " (forced)" : ""), entry.from + " -> " + entry.to,
                    entry.result + (entry.reason.empty() ? "" : ": " + entry.reason)});
  context.out.table({"time", "user", "verb", "change", "result"}, rows);
  return ExitCode::done;
}

}  // namespace

void setup_history(CLI::App& app, Context& context) {
  auto options = std::make_shared<Options>();
  auto& verb =
      add_verb(app, context, "history", "Show what was changed on this host, and how it ended",
               [&context, options] { return run_history(context, *options); });
  verb.add_flag("--json", options->json, "Print it as JSON");
  verb.add_flag("--full", options->full,
                "With the diff and the engine's last lines of changes that failed");
  verb.add_option("-n,--last", options->last, "How many of the last changes")
      ->check(quiet(CLI::PositiveNumber))
      ->type_name("COUNT");
}

}  // namespace kdtree
