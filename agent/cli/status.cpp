// SPDX-License-Identifier: Apache-2.0
#include <unistd.h>

#include <memory>
#include <nlohmann/json.hpp>
#include <optional>

#include "agent/cli/deployed.h"
#include "agent/cli/drift.h"
#include "agent/cli/facts_json.h"
#include "agent/cli/verbs.h"
#include "agent/plan/plan.h"
#include "agent/plan/transaction.h"
#include "agent/util/http_get.h"
#include "agent/util/lock_file.h"

namespace kdtree {
namespace {

using Json = nlohmann::ordered_json;

constexpr std::chrono::milliseconds kHealthDeadline{3'000};
constexpr const char* kAgentUnit = "kdtree-agent.service";

struct HostStatus {
  DriftFacts facts;
  UnitState agent;
  std::optional<int> health;  // HTTP status; nullopt: no answer
  std::vector<DriftLine> drift;
  std::vector<std::string> notes;
  std::optional<std::string> at_work;  // who changes the host now, "" = nobody; nullopt: unknown
};

Result<HostStatus> collect(Context& context, const Config& config) {
  HostStatus status;
  KDTREE_TRY_ASSIGN(auto services, context.services());
  KDTREE_TRY_ASSIGN(status.facts.state, read_state(context.root));
  KDTREE_TRY_ASSIGN(status.facts.unit, services->unit(config.engine.unit));
  KDTREE_TRY_ASSIGN(status.agent, services->unit(kAgentUnit));
  KDTREE_TRY_ASSIGN(status.facts.ranks, read_ranks(context.root, config.engine.ranks));
  if (auto cut_off = recovery_needed(context.root))
    status.facts.cut_off = *cut_off;
  else
    status.notes.push_back("not checked for a cut-off change: " + cut_off.error().what);
  if (auto control = read_control(context.root))
    status.facts.control = *control;
  else
    status.drift.push_back({"control", control.error().what, control.error().hint});
  if (!status.facts.state.current.none()) {
    auto manifest = read_manifest(release_folder(context.root, status.facts.state.current.release));
    if (manifest)
      status.facts.release = std::move(*manifest);
    else
      status.drift.push_back({"release", manifest.error().what, manifest.error().hint});
  }
  if (auto answer = http_get(config.engine.health_url, kHealthDeadline))
    status.health = answer->status;
  if (auto same = check_same_unit(status.facts.state, config); !same)
    status.drift.push_back({"unit", same.error().what, same.error().hint});
  if (auto holder = LockFile::holder(context.root))
    status.at_work = std::move(*holder);
  else
    status.notes.push_back("whether another kdtreectl is at work is not known: " +
                           holder.error().what);
  status.facts.live = context.root.is_host() && geteuid() == 0;
  auto drift = find_drift(context.root, status.facts);
  status.drift.insert(status.drift.end(), drift.begin(), drift.end());
  return status;
}

std::string kv_text(const std::vector<std::string>& types) {
  std::string text;
  for (const auto& type : types) text += ", " + type + " KV too";
  return text;
}

std::string release_text(const HostStatus& status) {
  const auto& current = status.facts.state.current;
  if (current.none()) return "none: nothing of kdtree is deployed";
  if (!status.facts.release) return current.release;
  const auto& made = *status.facts.release;
  return current.release + "  (" + made.engine + " " + made.engine_version + ", torch " +
         made.torch + ", proven on " +
         (made.selftest_device.empty()    ? "nothing"
          : made.selftest_device == "cpu" ? "the CPU implementation"
                                          : made.selftest_device) +
         kv_text(made.proven_kv) + ")";
}

std::string unit_text(const UnitState& unit) {
  if (!unit.exists()) return unit.name + " does not exist";
  std::string text = unit.name + " " + unit.active_state + " (" + unit.sub_state + ")";
  if (unit.main_pid > 0) text += ", main pid " + std::to_string(unit.main_pid);
  if (unit.active_state == "failed" && !unit.result.empty()) text += ", " + unit.result;
  return text;
}

std::vector<std::string> rank_row(const RankView& view) {
  const std::string rank = std::to_string(view.rank);
  if (!view.stats) return {rank, "-", "-", "-", "-", "-", "-", "-", "-", view.missing};
  const RankStats& stats = *view.stats;
  const bool active = stats.patch_state == PatchState::active;
  return {rank,
          std::to_string(stats.pid),
          stats.device_name.empty() ? "-" : stats.device_name,
          std::string(patch_state_name(stats.patch_state)),
          active ? std::string(to_string(stats.mode)) : "-",
          std::to_string(stats.calls_kernel),
          std::to_string(stats.calls_engine),
          std::to_string(stats.handed_back_total()),
          std::to_string(stats.compares),
          stats.reason};
}

// A process that refused before it knew its rank: it may be the one that is missing.
std::vector<std::string> refused_row(const RankStats& stats) {
  return {"?", std::to_string(stats.pid),
          "-", std::string(patch_state_name(stats.patch_state)),
          "-", "-",
          "-", "-",
          "-", stats.reason};
}

void print(Context& context, const Config& config, const HostStatus& status) {
  Output& out = context.out;
  const auto& state = status.facts.state;
  const auto& current = state.current;
  std::string mode =
      current.none() ? "-" : std::string(to_string(current.mode)) + (current.cold ? " (cold)" : "");
  if (state.trial) mode += "  (trial: not past its gate)";
  out.pairs({{"mode", mode},
             {"release", release_text(status)},
             {"last good", state.good ? describe(*state.good) : "-"},
             {"engine", unit_text(status.facts.unit)},
             {"health", config.engine.health_url +
                            (status.health ? " answers " + std::to_string(*status.health)
                                           : " does not answer")},
             {"ranks", std::to_string(status.facts.ranks.armed()) + " of " +
                           std::to_string(config.engine.ranks) + " armed"},
             {"agent", unit_text(status.agent)},
             {"drift", status.drift.empty()
                           ? out.paint(Tone::good, "none")
                           : out.paint(Tone::bad, std::to_string(status.drift.size()))}});
  for (const auto& line : status.drift)
    out.line("  " + line.kind + ": " + line.text + (line.next.empty() ? "" : "; " + line.next));
  if (status.at_work && !status.at_work->empty())
    out.line("at work: " + *status.at_work + "; what differs may be what it is about to change");
  for (const auto& note : status.notes) out.note("note: " + note);
  if (current.none() || current.cold) return;
  std::vector<std::vector<std::string>> rows;
  for (const auto& view : status.facts.ranks.ranks) rows.push_back(rank_row(view));
  for (const auto& other : status.facts.ranks.others)
    if (other.patch_state == PatchState::refused) rows.push_back(refused_row(other));
  out.line("");
  out.table({"rank", "pid", "device", "patch", "mode", "by kernel", "by engine", "handed back",
             "compares", "reason"},
            rows);
}

Json as_json(const Config& config, const HostStatus& status) {
  const auto& state = status.facts.state;
  Json ranks = Json::array(), drift = Json::array();
  for (const auto& view : status.facts.ranks.ranks) ranks.push_back(to_json(view));
  Json refused = Json::array();
  for (const auto& other : status.facts.ranks.others)
    if (other.patch_state == PatchState::refused)
      refused.push_back({{"pid", other.pid}, {"reason", other.reason}});
  for (const auto& line : status.drift)
    drift.push_back({{"kind", line.kind}, {"text", line.text}, {"next", line.next}});
  Json release = status.facts.release ? to_json(*status.facts.release) : Json(nullptr);
  if (release.is_object()) release.erase("files");
  return {{"deployed", !state.current.none()},
          {"mode", state.current.none() ? Json(nullptr) : Json(to_string(state.current.mode))},
          {"cold", state.current.cold},
          {"trial", state.trial},
          {"at_work",
           status.at_work && !status.at_work->empty() ? Json(*status.at_work) : Json(nullptr)},
          {"release", state.current.none() ? Json(nullptr) : Json(state.current.release)},
          {"last_good", state.good ? Json(describe(*state.good)) : Json(nullptr)},
          {"manifest", release},
          {"engine", to_json(status.facts.unit)},
          {"health",
           {{"url", config.engine.health_url},
            {"status", status.health ? Json(*status.health) : Json(nullptr)}}},
          {"control_generation",
           status.facts.control ? Json(status.facts.control->generation) : Json(nullptr)},
          {"ranks_expected", config.engine.ranks},
          {"ranks_armed", status.facts.ranks.armed()},
          {"ranks", ranks},
          {"refused", refused},
          {"agent", to_json(status.agent)},
          {"drift", drift}};
}

Result<ExitCode> run_status(Context& context, bool json) {
  KDTREE_TRY_ASSIGN(auto config, context.config_or_recorded());
  KDTREE_TRY_ASSIGN(auto status, collect(context, *config));
  if (json)
    context.out.json(as_json(*config, status));
  else
    print(context, *config, status);
  return status.drift.empty() ? ExitCode::done : ExitCode::bad_answer;
}

}  // namespace

void setup_status(CLI::App& app, Context& context) {
  auto json = std::make_shared<bool>(false);
  auto& verb = add_verb(app, context, "status",
                        "Show what is deployed, what runs, and whether the two agree",
                        [&context, json] { return run_status(context, *json); });
  verb.add_flag("--json", *json, "Print it as JSON");
  verb.footer("Exit status 1 where anything differs from what kdtreectl left (drift).");
}

}  // namespace kdtree
