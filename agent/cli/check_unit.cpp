// SPDX-License-Identifier: Apache-2.0
#include <cstdint>

#include "agent/cli/checks.h"
#include "agent/plan/engine_unit.h"
#include "agent/plan/plan.h"

namespace kdtree {
namespace {

std::string in_seconds(std::uint64_t microseconds) {
  return human_duration(static_cast<long long>(microseconds / 1000));
}

bool covers(const std::vector<std::string>& hidden, const std::string& path) {
  for (auto entry : hidden) {
    while (!entry.empty() && (entry.front() == '-' || entry.front() == '+')) entry.erase(0, 1);
    if (entry == path || path.starts_with(entry.ends_with('/') ? entry : entry + "/")) return true;
  }
  return false;
}

void check_command(const Config& config, const Facts& facts, CheckList& list) {
  // Whatever a deploy would refuse about the unit's command line and environment, it refuses here
  // too.
  auto unit = make_engine_unit(facts, config, Deployed{"doctor", Mode::off, false});
  if (!unit) {
    list.bad("engine command", unit.error());
    return;
  }
  list.ok("engine command", unit->base_exec_start);
  if (const auto ranks = check_ranks(unit->exec_start, config); !ranks)
    list.bad("engine ranks", ranks.error());
  for (const auto& note : unit->notes) list.warn("engine command", note, "");
}

void check_sandbox(const Config& config, const Facts& facts, CheckList& list) {
  const Sandbox& box = facts.unit.state.sandbox;
  const std::string name = "sandbox";
  const auto before = list.checks().size();
  if (!box.root_directory.empty() || !box.root_image.empty())
    list.bad(name, "the unit has its own root folder, where kdtree's files are not",
             "run the engine without RootDirectory= and RootImage=");
  for (const char* path : {paths::kReleases, paths::kRun})
    if (covers(box.inaccessible_paths, path))
      list.bad(name, std::string("InaccessiblePaths= hides ") + path, "take that path out of it");
  if (box.memory_deny_write_execute)
    list.warn(name, "MemoryDenyWriteExecute= keeps Triton and torch from compiling",
              "take it out of the unit");
  if (box.private_devices && config.kernel.device == KernelDevice::cuda)
    list.bad(name, "PrivateDevices= hides the GPUs", "take it out of the unit");
  if (box.private_network)
    list.warn(name, "PrivateNetwork= keeps the health check out", "take it out of the unit");
  if (list.checks().size() == before) list.ok(name, "nothing that keeps kdtree out");
}

void check_times(const Config& config, const Facts& facts, CheckList& list) {
  const UnitState& unit = facts.unit.state;
  const bool start_is_waited_for = unit.type == "notify" || unit.type == "forking" ||
                                   unit.type == "oneshot" || unit.type == "dbus";
  const auto healthy_us =
      static_cast<std::uint64_t>(config.deadlines.healthy_s.count()) * 1'000'000;
  const auto stop_us = static_cast<std::uint64_t>(config.deadlines.stop_s.count()) * 1'000'000;
  bool well = true;
  if (start_is_waited_for && unit.timeout_start_us < healthy_us) {
    list.warn("time limits",
              "systemd gives up on a start after " + in_seconds(unit.timeout_start_us) +
                  ", deadlines.healthy_s is " + in_seconds(healthy_us),
              "set TimeoutStartSec= of " + unit.name + " to at least that");
    well = false;
  }
  if (unit.timeout_stop_us > stop_us) {
    list.warn("time limits",
              unit.timeout_stop_us == UINT64_MAX
                  ? "a stop of " + unit.name + " has no time limit"
                  : "a stop of " + unit.name + " may take " + in_seconds(unit.timeout_stop_us) +
                        ", deadlines.stop_s is " + in_seconds(stop_us),
              "set TimeoutStopSec= of the unit, or a longer deadlines.stop_s");
    well = false;
  }
  if (well) list.ok("time limits", "start and stop fit the deadlines");
}

}  // namespace

void check_unit(const Config& config, const Facts& facts, CheckList& list) {
  const UnitState& unit = facts.unit.state;
  if (!unit.exists()) {
    list.ok("engine unit", unit.name + " does not exist yet; deploy writes it");
    return;
  }
  if (unit.load_state != "loaded") {
    list.bad("engine unit",
             unit.name + " is " + unit.load_state +
                 (unit.load_error.empty() ? "" : ": " + unit.load_error),
             "systemctl status " + unit.name);
    return;
  }
  const std::string what = unit.name + ", " + unit.active_state + " (" + unit.sub_state + ")";
  if (unit.active_state == "failed")
    list.warn("engine unit", what + ", " + unit.result, "journalctl -u " + unit.name);
  else if (!unit.is_active())
    list.warn("engine unit", what, "start it: kdtree is put under an engine that is known to work");
  else
    list.ok("engine unit", what);
  if (unit.need_daemon_reload)
    list.bad("unit files", "newer than what systemd has loaded", "systemctl daemon-reload");
  check_command(config, facts, list);
  check_sandbox(config, facts, list);
  check_times(config, facts, list);
}

}  // namespace kdtree
