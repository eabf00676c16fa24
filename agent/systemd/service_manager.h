// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "agent/systemd/unit_state.h"
#include "agent/util/result.h"

namespace kdtree {

// Called about once a second while a job is waited for; returning an error stops the waiting (not
// the job).
using JobTick = std::function<Status()>;

// A timer that lives in systemd until it is stopped or the host is: runs `argv` every `every`,
// first that long from now, counted from the end of the last run.
struct TransientTimer {
  std::string name;  // "x": x.timer and x.service
  std::string description;
  std::vector<std::string> argv;  // argv[0]: absolute path
  std::chrono::seconds every{30};
};

// The port to systemd. Every call ends within its deadline.
//
// Jobs: start, stop and restart return when systemd has finished the job, not when it has accepted
// it. For a Type=notify unit that is when the service said READY. A job that ends otherwise than
// "done", or not within the deadline, is an error that names the job's result and the unit's own
// result. A lost JobRemoved signal costs nothing: the job and the unit are read again every second.
//
// Errors: ExitCode::refused where nothing was done (no bus, no such unit, not permitted),
// rolled_back where systemd took the job and it failed: the caller is inside a transaction and
// decides what the exit code is in the end.
//
// Concurrency: one thread.
class ServiceManager {
 public:
  virtual ~ServiceManager() = default;

  // A unit that doesn't exist is no error: load_state is "not-found".
  virtual Result<UnitState> unit(const std::string& name) = 0;

  // What systemd itself gives to every service: DefaultEnvironment= and `systemctl
  // set-environment`.
  virtual Result<std::vector<std::pair<std::string, std::string>>> manager_environment() {
    return std::vector<std::pair<std::string, std::string>>{};
  }

  virtual Status daemon_reload(std::chrono::milliseconds deadline) = 0;
  virtual Status start(const std::string& name, std::chrono::milliseconds deadline,
                       const JobTick& tick = {}) = 0;
  // Stopping a unit that isn't loaded or not active succeeds.
  virtual Status stop(const std::string& name, std::chrono::milliseconds deadline,
                      const JobTick& tick = {}) = 0;
  virtual Status restart(const std::string& name, std::chrono::milliseconds deadline,
                         const JobTick& tick = {}) = 0;
  // Also clears the start limit, which counts manual starts. Succeeds for a unit that isn't loaded.
  virtual Status reset_failed(const std::string& name) = 0;

  // SIGTERM to the main process alone; the others of the unit get none. Without a main process:
  // nothing happens.
  virtual Status terminate_main(const std::string&) { return {}; }

  // One of that name that is there already is as good.
  virtual Status start_timer(const TransientTimer&) { return {}; }

  // As `systemctl enable|disable NAME`, without --now; both reload the manager's configuration.
  virtual Status enable(const std::string& name) = 0;
  virtual Status disable(const std::string& name) = 0;
};

enum class BusRoute {
  normal,  // the system bus, or systemd's private socket where root finds no bus
  direct,  // the private socket: early at boot, when the bus may wait for what waits for us
};

// Connects to the host's systemd.
Result<std::unique_ptr<ServiceManager>> connect_to_systemd(BusRoute route = BusRoute::normal);

}  // namespace kdtree
