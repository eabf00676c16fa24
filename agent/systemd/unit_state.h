// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace kdtree {

// One ExecStart= command as systemd holds it: unquoted, '%' specifiers already expanded, '$' not
// yet (that happens at exec). Text that is to go back into a unit file needs quoting and '%'
// doubled (agent/unitfile).
struct ExecCommand {
  std::string path;               // what is executed; argv[0] may differ (the '@' prefix)
  std::vector<std::string> argv;  // argv[0] first
  std::vector<std::string>
      flags;  // "ignore-failure", "privileged", "no-setuid", "ambient", "no-env-expand"
};

struct EnvironmentFile {
  std::string path;       // may be a glob
  bool optional = false;  // written with '-': silently skipped when missing
};

// What keeps a service's processes from seeing files, as far as kdtree's own paths can be touched
// by it.
struct Sandbox {
  std::string protect_system;  // "no", "yes", "full", "strict"
  std::string protect_home;    // "no", "yes", "read-only", "tmpfs"
  bool private_tmp = false;
  bool private_devices = false;
  bool private_network = false;
  bool no_new_privileges = false;
  bool memory_deny_write_execute = false;
  bool dynamic_user = false;
  std::string root_directory;  // "" = the host's
  std::string root_image;
  std::vector<std::string> read_write_paths;
  std::vector<std::string> read_only_paths;
  std::vector<std::string> inaccessible_paths;
  std::string device_policy;  // "auto", "closed", "strict"
};

// A unit as the service manager sees it at one moment. "" and 0 mean that systemd reported none.
struct UnitState {
  std::string name;        // primary name, "sglang.service"
  std::string load_state;  // "loaded", "not-found", "masked", "bad-setting", "error"
  std::string load_error;  // systemd's text for a load that failed
  std::string
      active_state;  // "active", "reloading", "inactive", "failed", "activating", "deactivating"
  std::string sub_state;        // "running", "dead", "auto-restart", "start", ...
  std::string unit_file_state;  // "enabled", "disabled", "static", ...
  std::string
      result;  // "success", "exit-code", "signal", "timeout", "oom-kill", "start-limit-hit", ...
  std::string invocation_id;  // 32 hex digits; changes with every start
  std::string fragment_path;
  std::vector<std::string> drop_in_paths;  // in the order in which they apply
  bool need_daemon_reload = false;

  std::string type;  // "simple", "exec", "notify", "forking", "oneshot", ...
  pid_t main_pid = 0;
  int exec_main_code = 0;    // CLD_* of the main process's end
  int exec_main_status = 0;  // its exit status or signal
  std::uint32_t restarts = 0;
  std::string restart;        // "no", "always", "on-failure", ...
  std::string control_group;  // "/system.slice/sglang.service"
  std::string slice;
  std::string user;   // "" = root
  std::string group;  // "" = the user's own
  std::string working_directory;
  std::vector<std::string> runtime_directories;                  // RuntimeDirectory=, below /run
  std::vector<std::pair<std::string, std::string>> environment;  // Environment=, as it is in force
  std::vector<EnvironmentFile> environment_files;                // beat Environment=
  std::vector<ExecCommand> exec_start;
  Sandbox sandbox;
  std::uint64_t timeout_start_us = 0;  // UINT64_MAX = infinity
  std::uint64_t timeout_stop_us = 0;   // UINT64_MAX = infinity

  // Started anew by systemd also after an orderly end.
  bool restarts_after_success() const { return restart == "always" || restart == "on-success"; }
  bool exists() const { return load_state != "not-found" && !load_state.empty(); }
  bool is_active() const { return active_state == "active"; }
  // Ended and not about to be started again by systemd.
  bool has_ended() const { return active_state == "failed" || active_state == "inactive"; }
};

}  // namespace kdtree
