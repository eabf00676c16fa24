// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <map>
#include <optional>
#include <string>

#include "agent/systemd/bus.h"
#include "agent/systemd/service_manager.h"

namespace kdtree {

// ServiceManager over sd-bus. See the port for the contract.
class SdBusManager : public ServiceManager {
 public:
  // `address`: "" = the system bus (root falls back to systemd's private socket); else a D-Bus
  // address of a peer that is systemd itself.
  explicit SdBusManager(std::string address = {}) : address_(std::move(address)) {}

  // Connects, subscribes to job signals and installs the match for them.
  Status connect();

  // Each call connects anew where the connection has been lost before it; one that is lost in its
  // middle is a failure of that call.
  Result<UnitState> unit(const std::string& name) override;
  Result<std::vector<std::pair<std::string, std::string>>> manager_environment() override;
  Status daemon_reload(std::chrono::milliseconds deadline) override;
  Status start(const std::string& name, std::chrono::milliseconds deadline,
               const JobTick& tick) override;
  Status stop(const std::string& name, std::chrono::milliseconds deadline,
              const JobTick& tick) override;
  Status restart(const std::string& name, std::chrono::milliseconds deadline,
                 const JobTick& tick) override;
  Status reset_failed(const std::string& name) override;
  Status terminate_main(const std::string& name) override;
  Status start_timer(const TransientTimer& timer) override;
  Status enable(const std::string& name) override;
  Status disable(const std::string& name) override;

 private:
  using Clock = std::chrono::steady_clock;
  enum class JobEnd { running, told, vanished };

  Status run_job(const char* method, const std::string& name, std::chrono::milliseconds deadline,
                 const JobTick& tick);
  Result<std::string> begin_job(const char* method, const std::string& name,
                                Clock::time_point until);
  Result<std::string> await_job(const std::string& job, const std::string& name,
                                Clock::time_point until, const JobTick& tick);
  Status judge(const char* method, const std::string& name, const std::string& job_result);
  Result<bool> job_exists(const std::string& job);
  Result<bus::Connection> open() const;
  Status ensure_connected();
  Status set_enabled(const char* method, const std::string& name);
  Status fill(const std::string& path, const char* interface, UnitState& state);
  // 1 = handled something, 0 = waited, negative errno = connection broken.
  int pump(std::chrono::milliseconds at_most);

  static int on_job_removed(sd_bus_message* message, void* self, sd_bus_error*);

  std::string address_;
  bus::Connection bus_;
  bus::Slot match_;
  std::map<std::string, std::string> ended_jobs_;  // job path -> result, while a job is waited for
};

}  // namespace kdtree
