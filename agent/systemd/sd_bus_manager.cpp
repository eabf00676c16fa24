// SPDX-License-Identifier: Apache-2.0
#include "agent/systemd/sd_bus_manager.h"

#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <thread>

namespace kdtree {
namespace {

using std::chrono::duration_cast;
using std::chrono::microseconds;
using std::chrono::milliseconds;

constexpr milliseconds kCallDeadline{25'000};
constexpr const char* kPrivateSocket = "unix:path=/run/systemd/private";
constexpr milliseconds kReread{1'000};

std::string seconds_text(milliseconds span) {
  return std::to_string(duration_cast<std::chrono::seconds>(span).count()) + " s";
}

std::uint64_t microseconds_until(std::chrono::steady_clock::time_point until) {
  auto left = duration_cast<microseconds>(until - std::chrono::steady_clock::now()).count();
  return static_cast<std::uint64_t>(std::max<long long>(left, 1));
}

tl::unexpected<Error> bus_failure(const std::string& doing, const bus::BusError& error, int r) {
  std::string hint;
  if (error.is("org.freedesktop.DBus.Error.AccessDenied") || r == -EACCES || r == -EPERM ||
      error.is("org.freedesktop.DBus.Error.InteractiveAuthorizationRequired"))
    hint = "run it as root";
  return fail(ExitCode::refused, doing + ": " + error.text(r), hint);
}

}  // namespace

std::string bus::BusError::text(int r) const {
  std::string text = error_.message ? error_.message : std::strerror(r < 0 ? -r : r);
  std::replace(text.begin(), text.end(), '\n', ' ');
  return text;
}

Result<std::unique_ptr<ServiceManager>> connect_to_systemd(BusRoute route) {
  auto manager = std::make_unique<SdBusManager>(route == BusRoute::direct ? kPrivateSocket : "");
  KDTREE_TRY(manager->connect());
  return std::unique_ptr<ServiceManager>(std::move(manager));
}

Result<bus::Connection> SdBusManager::open() const {
  sd_bus* raw = nullptr;
  int r = 0;
  std::string address = address_;
  if (address.empty()) {
    r = sd_bus_open_system(&raw);
    if (r >= 0) return bus::Connection(raw);
    if (geteuid() == 0 && access("/run/systemd/private", F_OK) == 0) address = kPrivateSocket;
  }
  if (!address.empty()) {
    r = sd_bus_new(&raw);
    bus::Connection connection(raw);
    if (r >= 0) r = sd_bus_set_address(connection.get(), address.c_str());
    if (r >= 0) r = sd_bus_start(connection.get());
    if (r >= 0) return connection;
  }
  return fail(ExitCode::refused, std::string("cannot reach systemd: ") + std::strerror(-r),
              "kdtree needs a host that was booted with systemd");
}

Status SdBusManager::connect() {
  match_.reset();
  KDTREE_TRY_ASSIGN(bus_, open());
  sd_bus_set_method_call_timeout(bus_.get(),
                                 static_cast<std::uint64_t>(microseconds(kCallDeadline).count()));
  sd_bus_slot* slot = nullptr;
  // On the private socket nobody puts a sender into the messages.
  const char* sender = sd_bus_is_bus_client(bus_.get()) > 0 ? bus::kSystemd : nullptr;
  int r = sd_bus_match_signal(bus_.get(), &slot, sender, bus::kManagerPath, bus::kManager,
                              "JobRemoved", on_job_removed, this);
  bus::BusError error;
  if (r < 0) return bus_failure("cannot watch systemd's jobs", error, r);
  match_.reset(slot);
  r = sd_bus_call_method(bus_.get(), bus::kSystemd, bus::kManagerPath, bus::kManager, "Subscribe",
                         error.out(), nullptr, "");
  if (r < 0 && !error.is("org.freedesktop.systemd1.AlreadySubscribed"))
    return bus_failure("cannot subscribe to systemd's signals", error, r);
  return {};
}

Status SdBusManager::ensure_connected() {
  return sd_bus_is_open(bus_.get()) > 0 ? Status{} : connect();
}

int SdBusManager::on_job_removed(sd_bus_message* message, void* self, sd_bus_error*) {
  std::uint32_t id = 0;
  const char *path = nullptr, *unit = nullptr, *result = nullptr;
  if (sd_bus_message_read(message, "uoss", &id, &path, &unit, &result) >= 0)
    static_cast<SdBusManager*>(self)->ended_jobs_[path] = result;
  return 0;
}

Status SdBusManager::fill(const std::string& path, const char* interface, UnitState& state) {
  bus::BusError error;
  sd_bus_message* raw = nullptr;
  int r =
      sd_bus_call_method(bus_.get(), bus::kSystemd, path.c_str(), "org.freedesktop.DBus.Properties",
                         "GetAll", error.out(), &raw, "s", interface);
  bus::Message reply(raw);
  if (r >= 0) r = bus::read_properties(reply.get(), state);
  if (r < 0) return bus_failure("cannot read the state of " + state.name, error, r);
  return {};
}

Result<UnitState> SdBusManager::unit(const std::string& name) {
  KDTREE_TRY(ensure_connected());
  bus::BusError error;
  sd_bus_message* raw = nullptr;
  int r = sd_bus_call_method(bus_.get(), bus::kSystemd, bus::kManagerPath, bus::kManager,
                             "LoadUnit", error.out(), &raw, "s", name.c_str());
  bus::Message reply(raw);
  const char* path = nullptr;
  if (r >= 0) r = sd_bus_message_read_basic(reply.get(), 'o', &path);
  if (r < 0) return bus_failure("cannot load the unit " + name, error, r);
  UnitState state;
  state.name = name;
  KDTREE_TRY(fill(path, bus::kUnit, state));
  if (state.name.ends_with(".service")) KDTREE_TRY(fill(path, bus::kService, state));
  return state;
}

Result<std::vector<std::pair<std::string, std::string>>> SdBusManager::manager_environment() {
  KDTREE_TRY(ensure_connected());
  bus::BusError error;
  char** raw = nullptr;
  int r = sd_bus_get_property_strv(bus_.get(), bus::kSystemd, bus::kManagerPath, bus::kManager,
                                   "Environment", error.out(), &raw);
  if (r < 0) return bus_failure("cannot read systemd's own environment", error, r);
  std::vector<std::pair<std::string, std::string>> variables;
  for (char** line = raw; line && *line; ++line) {
    const std::string text = *line;
    if (auto equals = text.find('='); equals != text.npos)
      variables.emplace_back(text.substr(0, equals), text.substr(equals + 1));
    std::free(*line);
  }
  std::free(raw);
  return variables;
}

// Some versions answer a finished reload by closing the connection or not at all; but neither does
// one that never came to systemd get an answer. It may be repeated, so it is, once.
Status SdBusManager::daemon_reload(milliseconds deadline) {
  for (bool again = false;; again = true) {
    KDTREE_TRY(ensure_connected());
    sd_bus_message* raw = nullptr;
    int r = sd_bus_message_new_method_call(bus_.get(), &raw, bus::kSystemd, bus::kManagerPath,
                                           bus::kManager, "Reload");
    bus::Message call(raw);
    bus::BusError error;
    if (r >= 0)
      r = sd_bus_call(bus_.get(), call.get(),
                      static_cast<std::uint64_t>(microseconds(deadline).count()), error.out(),
                      nullptr);
    if (r >= 0) return {};
    const bool unanswered = error.is(SD_BUS_ERROR_NO_REPLY) || error.is(SD_BUS_ERROR_DISCONNECTED);
    if (!unanswered && r != -ECONNRESET && r != -ENOTCONN)
      return bus_failure("systemd could not reload its configuration", error, r);
    KDTREE_TRY(connect());
    if (again) return {};
  }
}

Status SdBusManager::start(const std::string& name, milliseconds deadline, const JobTick& tick) {
  return run_job("StartUnit", name, deadline, tick);
}

Status SdBusManager::restart(const std::string& name, milliseconds deadline, const JobTick& tick) {
  return run_job("RestartUnit", name, deadline, tick);
}

Status SdBusManager::stop(const std::string& name, milliseconds deadline, const JobTick& tick) {
  KDTREE_TRY_ASSIGN(auto state, unit(name));
  if (!state.exists() && state.has_ended()) return {};
  return run_job("StopUnit", name, deadline, tick);
}

Status SdBusManager::reset_failed(const std::string& name) {
  KDTREE_TRY(ensure_connected());
  bus::BusError error;
  int r = sd_bus_call_method(bus_.get(), bus::kSystemd, bus::kManagerPath, bus::kManager,
                             "ResetFailedUnit", error.out(), nullptr, "s", name.c_str());
  if (r < 0 && !error.is("org.freedesktop.systemd1.NoSuchUnit"))
    return bus_failure("cannot reset the failed state of " + name, error, r);
  return {};
}

Status SdBusManager::terminate_main(const std::string& name) {
  KDTREE_TRY(ensure_connected());
  bus::BusError error;
  int r =
      sd_bus_call_method(bus_.get(), bus::kSystemd, bus::kManagerPath, bus::kManager, "KillUnit",
                         error.out(), nullptr, "ssi", name.c_str(), "main", SIGTERM);
  if (r < 0 && !error.is("org.freedesktop.systemd1.NoSuchProcess"))
    return bus_failure("cannot signal " + name, error, r);
  return {};
}

Status SdBusManager::set_enabled(const char* method, const std::string& name) {
  KDTREE_TRY(ensure_connected());
  const bool enabling = std::strcmp(method, "EnableUnitFiles") == 0;
  const char* names[] = {name.c_str(), nullptr};
  sd_bus_message* raw = nullptr;
  int r = sd_bus_message_new_method_call(bus_.get(), &raw, bus::kSystemd, bus::kManagerPath,
                                         bus::kManager, method);
  bus::Message call(raw);
  if (r >= 0) r = sd_bus_message_append_strv(call.get(), const_cast<char**>(names));
  if (r >= 0)
    r = enabling ? sd_bus_message_append(call.get(), "bb", 0, 0)
                 : sd_bus_message_append(call.get(), "b", 0);
  bus::BusError error;
  if (r >= 0) r = sd_bus_call(bus_.get(), call.get(), 0, error.out(), nullptr);
  if (r < 0)
    return bus_failure(std::string(enabling ? "cannot enable " : "cannot disable ") + name, error,
                       r);
  return daemon_reload(kCallDeadline);
}

Status SdBusManager::enable(const std::string& name) {
  return set_enabled("EnableUnitFiles", name);
}
Status SdBusManager::disable(const std::string& name) {
  return set_enabled("DisableUnitFiles", name);
}

Result<std::string> SdBusManager::begin_job(const char* method, const std::string& name,
                                            Clock::time_point until) {
  sd_bus_message* raw = nullptr;
  int r = sd_bus_message_new_method_call(bus_.get(), &raw, bus::kSystemd, bus::kManagerPath,
                                         bus::kManager, method);
  bus::Message call(raw);
  bus::BusError error;
  raw = nullptr;
  if (r >= 0) r = sd_bus_message_append(call.get(), "ss", name.c_str(), "replace");
  if (r >= 0)
    r = sd_bus_call(
        bus_.get(), call.get(),
        std::min<std::uint64_t>(microseconds_until(until), microseconds(kCallDeadline).count()),
        error.out(), &raw);
  bus::Message reply(raw);
  const char* job = nullptr;
  if (r >= 0) r = sd_bus_message_read_basic(reply.get(), 'o', &job);
  if (r < 0) return bus_failure(std::string("systemd refused ") + method + " " + name, error, r);
  return std::string(job);
}

int SdBusManager::pump(milliseconds at_most) {
  int r = sd_bus_process(bus_.get(), nullptr);
  if (r != 0) return r;
  return sd_bus_wait(bus_.get(), static_cast<std::uint64_t>(microseconds(at_most).count()));
}

Result<bool> SdBusManager::job_exists(const std::string& job) {
  bus::BusError error;
  sd_bus_message* raw = nullptr;
  int r = sd_bus_get_property(bus_.get(), bus::kSystemd, job.c_str(), bus::kJob, "Id", error.out(),
                              &raw, "u");
  bus::Message reply(raw);
  if (r >= 0) return true;
  if (error.is(SD_BUS_ERROR_UNKNOWN_OBJECT) || error.is("org.freedesktop.systemd1.NoSuchJob"))
    return false;
  return bus_failure("cannot read the job " + job, error, r);
}

// The job's result, or "" where it ended without our hearing of it.
Result<std::string> SdBusManager::await_job(const std::string& job, const std::string& name,
                                            Clock::time_point until, const JobTick& tick) {
  auto reread = Clock::now() + kReread;
  while (true) {
    if (auto told = ended_jobs_.find(job); told != ended_jobs_.end()) return told->second;
    auto now = Clock::now();
    if (now >= until)
      return fail(ExitCode::rolled_back, "systemd did not finish the job for " + name + " in time");
    auto wait = duration_cast<milliseconds>(std::min(reread, until) - now) + milliseconds(1);
    int r = pump(std::max(wait, milliseconds(1)));
    if (r < 0 && r != -EINTR) {
      // systemd or the bus was restarted: the job's fate is read from the unit.
      std::this_thread::sleep_for(milliseconds(200));
      if (!connect()) continue;
    }
    if (Clock::now() < reread) continue;
    reread = Clock::now() + kReread;
    if (tick) KDTREE_TRY(tick());
    auto exists = job_exists(job);
    if (exists && !*exists) {
      while (sd_bus_process(bus_.get(), nullptr) > 0) {
      }
      auto told = ended_jobs_.find(job);
      return told != ended_jobs_.end() ? told->second : std::string();
    }
  }
}

Status SdBusManager::judge(const char* method, const std::string& name,
                           const std::string& job_result) {
  const bool stopping = std::strcmp(method, "StopUnit") == 0;
  KDTREE_TRY_ASSIGN(auto state, unit(name));
  if (job_result == "done") return {};
  if (job_result.empty() && (stopping ? state.has_ended() : state.is_active())) return {};
  std::string what = std::string(stopping ? "stopping " : "starting ") + name + " failed: job " +
                     (job_result.empty() ? "ended unseen" : job_result) + ", unit " +
                     state.active_state + " (" + state.sub_state + ")";
  if (!state.result.empty() && state.result != "success") what += ", result " + state.result;
  return fail(ExitCode::rolled_back, what, "journalctl -u " + name + " says more");
}

Status SdBusManager::run_job(const char* method, const std::string& name, milliseconds deadline,
                             const JobTick& tick) {
  auto until = Clock::now() + deadline;
  KDTREE_TRY(ensure_connected());
  ended_jobs_.clear();
  KDTREE_TRY_ASSIGN(auto job, begin_job(method, name, until));
  auto result = await_job(job, name, until, tick);
  if (!result) {
    if (Clock::now() >= until) result.error().what += " (" + seconds_text(deadline) + ")";
    return tl::make_unexpected(result.error());
  }
  return judge(method, name, *result);
}

}  // namespace kdtree
