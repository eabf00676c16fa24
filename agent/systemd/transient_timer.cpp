// SPDX-License-Identifier: Apache-2.0
#include "agent/systemd/sd_bus_manager.h"

// SdBusManager::start_timer: what `systemd-run --on-active= --on-unit-inactive=` asks for.
namespace kdtree {
namespace {

std::uint64_t microseconds_of(std::chrono::seconds span) {
  return static_cast<std::uint64_t>(std::chrono::microseconds(span).count());
}

int append_service(sd_bus_message* call, const TransientTimer& timer) {
  int r = sd_bus_message_append(call, "(sv)", "Description", "s", timer.description.c_str());
  if (r >= 0) r = sd_bus_message_append(call, "(sv)", "Type", "s", "oneshot");
  if (r >= 0) r = sd_bus_message_append(call, "(sv)", "CollectMode", "s", "inactive-or-failed");
  if (r >= 0) r = sd_bus_message_open_container(call, 'r', "sv");
  if (r >= 0) r = sd_bus_message_append(call, "s", "ExecStart");
  if (r >= 0) r = sd_bus_message_open_container(call, 'v', "a(sasb)");
  if (r >= 0) r = sd_bus_message_open_container(call, 'a', "(sasb)");
  if (r >= 0) r = sd_bus_message_open_container(call, 'r', "sasb");
  if (r >= 0) r = sd_bus_message_append(call, "s", timer.argv.at(0).c_str());
  if (r >= 0) r = sd_bus_message_open_container(call, 'a', "s");
  for (const auto& word : timer.argv)
    if (r >= 0) r = sd_bus_message_append(call, "s", word.c_str());
  if (r >= 0) r = sd_bus_message_close_container(call);
  if (r >= 0) r = sd_bus_message_append(call, "b", 0);
  for (int open = 0; open < 4 && r >= 0; ++open) r = sd_bus_message_close_container(call);
  return r;
}

int append_all(sd_bus_message* call, const TransientTimer& timer) {
  const auto every = microseconds_of(timer.every);
  int r = sd_bus_message_append(call, "ss", (timer.name + ".timer").c_str(), "fail");
  if (r >= 0)
    r = sd_bus_message_append(call, "a(sv)", 5, "Description", "s", timer.description.c_str(),
                              "CollectMode", "s", "inactive-or-failed", "RemainAfterElapse", "b", 1,
                              "AccuracyUSec", "t", microseconds_of(std::chrono::seconds(1)),
                              "TimersMonotonic", "a(st)", 2, "OnActiveSec", every,
                              "OnUnitInactiveSec", every);
  if (r >= 0) r = sd_bus_message_open_container(call, 'a', "(sa(sv))");
  if (r >= 0) r = sd_bus_message_open_container(call, 'r', "sa(sv)");
  if (r >= 0) r = sd_bus_message_append(call, "s", (timer.name + ".service").c_str());
  if (r >= 0) r = sd_bus_message_open_container(call, 'a', "(sv)");
  if (r >= 0) r = append_service(call, timer);
  for (int open = 0; open < 3 && r >= 0; ++open) r = sd_bus_message_close_container(call);
  return r;
}

}  // namespace

Status SdBusManager::start_timer(const TransientTimer& timer) {
  sd_bus_message* raw = nullptr;
  int r = sd_bus_message_new_method_call(bus_.get(), &raw, bus::kSystemd, bus::kManagerPath,
                                         bus::kManager, "StartTransientUnit");
  const bus::Message call(raw);
  bus::BusError error;
  if (r >= 0) r = append_all(call.get(), timer);
  if (r >= 0) r = sd_bus_call(bus_.get(), call.get(), 0, error.out(), nullptr);
  if (r >= 0 || error.is("org.freedesktop.systemd1.UnitExists")) return {};
  return fail(ExitCode::refused,
              "systemd refused to start " + timer.name + ".timer: " + error.text(r));
}

}  // namespace kdtree
