// SPDX-License-Identifier: Apache-2.0
#include "agent/plan/state.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <nlohmann/json.hpp>

#include "agent/util/atomic_file.h"
#include "agent/util/unique_fd.h"

namespace kdtree {

using nlohmann::json;
using nlohmann::ordered_json;

ordered_json to_json(const Deployed& deployed) {
  ordered_json value = {{"release", deployed.release},
                        {"mode", std::string(to_string(deployed.mode))},
                        {"cold", deployed.cold}};
  if (deployed.line) value["line"] = std::string(to_string(*deployed.line));
  return value;
}

Deployed deployed_of(const json& value) {
  const auto mode_of = [](const json& text) {
    const auto mode = parse_mode(text.get<std::string>());
    if (!mode) throw json::other_error::create(500, "unknown mode", nullptr);
    return *mode;
  };
  Deployed deployed;
  value.at("release").get_to(deployed.release);
  deployed.mode = mode_of(value.at("mode"));
  value.at("cold").get_to(deployed.cold);
  if (value.contains("line")) deployed.line = mode_of(value.at("line"));
  return deployed;
}

namespace {

ordered_json json_of(const std::optional<Deployed>& deployed) {
  return deployed ? to_json(*deployed) : ordered_json(nullptr);
}

std::optional<Deployed> maybe_deployed_of(const json& value) {
  if (value.is_null()) return std::nullopt;
  return deployed_of(value);
}

HistoryEntry entry_of(const json& value) {
  HistoryEntry entry;
  value.at("time").get_to(entry.time);
  value.at("verb").get_to(entry.verb);
  value.at("from").get_to(entry.from);
  value.at("to").get_to(entry.to);
  value.at("result").get_to(entry.result);
  value.at("reason").get_to(entry.reason);
  value.at("plan").get_to(entry.plan);
  value.at("user").get_to(entry.user);
  value.at("forced").get_to(entry.forced);
  entry.evidence = value.value("evidence", "");
  return entry;
}

State state_of(const json& value) {
  State state;
  state.current = deployed_of(value.at("current"));
  state.good = maybe_deployed_of(value.at("good"));
  state.before = maybe_deployed_of(value.at("before"));
  value.at("trial").get_to(state.trial);
  value.at("accepted_engines").get_to(state.accepted_engines);
  if (const json& before = value.at("unit_before"); !before.is_null()) {
    state.unit_before.emplace();
    before.at("unit").get_to(state.unit_before->unit);
    before.at("exec_start").get_to(state.unit_before->exec_start);
    before.at("digest").get_to(state.unit_before->digest);
  }
  value.at("managed").get_to(state.managed);
  if (const json& took = value.value("last_start_ms", json()); took.is_number_unsigned())
    state.last_start = std::chrono::milliseconds(took.get<std::uint64_t>());
  if (const auto kept = value.find("configuration"); kept != value.end())
    state.configuration = kept->dump();
  for (const json& entry : value.at("history")) state.history.push_back(entry_of(entry));
  return state;
}

std::filesystem::path state_path(const Root& root) { return root(paths::kState) / "state.json"; }

}  // namespace

std::string describe(const Deployed& deployed) {
  if (deployed.none()) return "none";
  return deployed.release + " " + std::string(to_string(deployed.mode)) +
         (deployed.cold ? " (cold)" : "") +
         (deployed.line ? " (command line of " + std::string(to_string(*deployed.line)) + ")" : "");
}

ordered_json to_json(const HistoryEntry& entry) {
  ordered_json value = {{"time", entry.time}, {"verb", entry.verb},     {"from", entry.from},
                        {"to", entry.to},     {"result", entry.result}, {"reason", entry.reason},
                        {"plan", entry.plan}, {"user", entry.user},     {"forced", entry.forced}};
  if (!entry.evidence.empty()) value["evidence"] = entry.evidence;
  return value;
}

ordered_json to_json(const State& state) {
  ordered_json value = {{"format", kStateFormat},
                        {"current", to_json(state.current)},
                        {"good", json_of(state.good)},
                        {"before", json_of(state.before)},
                        {"trial", state.trial},
                        {"accepted_engines", state.accepted_engines},
                        {"unit_before", nullptr},
                        {"managed", state.managed},
                        {"history", ordered_json::array()}};
  if (state.unit_before)
    value["unit_before"] = {{"unit", state.unit_before->unit},
                            {"exec_start", state.unit_before->exec_start},
                            {"digest", state.unit_before->digest}};
  if (state.last_start) value["last_start_ms"] = state.last_start->count();
  if (state.configuration) value["configuration"] = ordered_json::parse(*state.configuration);
  for (const auto& entry : state.history) value["history"].push_back(to_json(entry));
  return value;
}

Result<State> parse_state(std::string_view text, const std::string& where) {
  try {
    const json value = json::parse(text);
    if (value.at("format").get<int>() > kStateFormat)
      return fail(ExitCode::refused, where + " was written by a newer kdtreectl",
                  "use that one, or a newer one");
    return state_of(value);
  } catch (const json::exception&) {
    return fail(ExitCode::refused, where + " is damaged",
                "restore it from a backup; runbooks/rollback.md says how to go on without it");
  }
}

Result<State> read_state(const Root& root) {
  const auto path = state_path(root);
  KDTREE_TRY_ASSIGN(auto text, read_file_if_there(path));
  if (!text) return State{};
  return parse_state(*text, path.string());
}

Status write_state(const Root& root, const State& state) {
  State kept = state;
  if (kept.history.size() > kHistoryKept)
    kept.history.erase(kept.history.begin(),
                       kept.history.end() - static_cast<std::ptrdiff_t>(kHistoryKept));
  KDTREE_TRY(make_directories(root(paths::kState)));
  return write_file_atomic(state_path(root),
                           to_json(kept).dump(2, ' ', false, json::error_handler_t::replace) + "\n",
                           0644);
}

Status append_audit(const Root& root, const HistoryEntry& entry,
                    const std::vector<std::string>& argv) {
  const auto path = root(paths::kState) / "audit.jsonl";
  ordered_json value = to_json(entry);
  value["argv"] = argv;
  value["uid"] = ::getuid();
  const std::string line = value.dump(-1, ' ', false, json::error_handler_t::replace) + "\n";
  KDTREE_TRY(make_directories(path.parent_path()));
  UniqueFd fd(::open(path.c_str(), O_WRONLY | O_APPEND | O_CREAT | O_NOFOLLOW | O_CLOEXEC, 0640));
  if (!fd) return tl::make_unexpected(io_error("opening", path, errno));
  if (::write(fd.get(), line.data(), line.size()) != static_cast<ssize_t>(line.size()))
    return tl::make_unexpected(io_error("writing", path, errno));
  if (::fsync(fd.get()) != 0) return tl::make_unexpected(io_error("syncing", path, errno));
  return {};
}

}  // namespace kdtree
