// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <systemd/sd-bus.h>

#include <memory>
#include <string>

#include "agent/systemd/unit_state.h"
#include "agent/util/result.h"

// Ownership and error text for sd-bus; used only inside agent/systemd.
namespace kdtree::bus {

struct Closer {
  void operator()(sd_bus* bus) const { sd_bus_flush_close_unref(bus); }
  void operator()(sd_bus_message* message) const { sd_bus_message_unref(message); }
  void operator()(sd_bus_slot* slot) const { sd_bus_slot_unref(slot); }
};
using Connection = std::unique_ptr<sd_bus, Closer>;
using Message = std::unique_ptr<sd_bus_message, Closer>;
using Slot = std::unique_ptr<sd_bus_slot, Closer>;

class BusError {
 public:
  BusError() = default;
  BusError(const BusError&) = delete;
  BusError& operator=(const BusError&) = delete;
  ~BusError() { sd_bus_error_free(&error_); }

  sd_bus_error* out() { return &error_; }
  bool is(const char* name) const { return sd_bus_error_has_name(&error_, name) > 0; }
  // The peer's text, or errno's where the peer said nothing. One line.
  std::string text(int r) const;
  // The D-Bus error name, "" when there is none.
  std::string name() const { return error_.name ? error_.name : ""; }

 private:
  sd_bus_error error_ = SD_BUS_ERROR_NULL;
};

inline constexpr const char* kSystemd = "org.freedesktop.systemd1";
inline constexpr const char* kManagerPath = "/org/freedesktop/systemd1";
inline constexpr const char* kManager = "org.freedesktop.systemd1.Manager";
inline constexpr const char* kUnit = "org.freedesktop.systemd1.Unit";
inline constexpr const char* kService = "org.freedesktop.systemd1.Service";
inline constexpr const char* kJob = "org.freedesktop.systemd1.Job";

// Puts the properties in `reply`, the answer to Properties.GetAll ("a{sv}"), into `state`; those it
// doesn't know are skipped. Negative errno on a message that isn't of that form.
int read_properties(sd_bus_message* reply, UnitState& state);

}  // namespace kdtree::bus
