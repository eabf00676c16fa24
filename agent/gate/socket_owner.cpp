// SPDX-License-Identifier: Apache-2.0
#include "agent/gate/socket_owner.h"

#include <algorithm>
#include <charconv>
#include <filesystem>
#include <fstream>
#include <set>
#include <sstream>

namespace kdtree {
namespace {

namespace fs = std::filesystem;

// Adds the inodes of sockets that listen on `port` according to one of /proc/net/tcp, tcp6; false
// if it can't be read.
bool add_listening(const fs::path& table, int port, std::set<std::string>& inodes) {
  std::ifstream in(table);
  if (!in) return false;
  std::string line;
  std::getline(in, line);
  while (std::getline(in, line)) {
    std::istringstream fields(line);
    std::string slot, local, remote, state, queues, timer, retransmits, uid, timeout, inode;
    if (!(fields >> slot >> local >> remote >> state >> queues >> timer >> retransmits >> uid >>
          timeout >> inode))
      continue;
    auto colon = local.rfind(':');
    if (state != "0A" || colon == local.npos) continue;
    int its_port = 0;
    std::from_chars(local.data() + colon + 1, local.data() + local.size(), its_port, 16);
    if (its_port == port) inodes.insert("socket:[" + inode + "]");
  }
  return true;
}

// Whether process `pid` has one of `sockets` open; nullopt if its descriptors can't be read.
std::optional<bool> holds(const Root& root, const std::string& pid,
                          const std::set<std::string>& sockets) {
  std::error_code error;
  fs::directory_iterator fds(root("/proc/" + pid + "/fd"), error);
  if (error) return std::nullopt;
  for (; fds != fs::directory_iterator(); fds.increment(error)) {
    if (error) return std::nullopt;
    std::error_code gone;
    auto target = fs::read_symlink(fds->path(), gone);
    if (!gone && sockets.contains(target.string())) return true;
  }
  return false;
}

bool is_number(const std::string& text) {
  return !text.empty() && std::ranges::all_of(text, [](char c) { return c >= '0' && c <= '9'; });
}

std::string name_of_holder(const Root& root, const std::set<std::string>& sockets) {
  std::error_code error;
  for (fs::directory_iterator it(root("/proc"), error), end; !error && it != end;
       it.increment(error)) {
    const std::string pid = it->path().filename().string();
    if (!is_number(pid) || !holds(root, pid, sockets).value_or(false)) continue;
    std::string name;
    std::ifstream comm(it->path() / "comm");
    std::getline(comm, name);
    return (name.empty() ? "a process" : name) + " (pid " + pid + ")";
  }
  return "a process that can't be told";
}

void collect_pids(const fs::path& group, std::vector<pid_t>& pids) {
  std::ifstream procs(group / "cgroup.procs");
  for (pid_t pid = 0; procs >> pid;) pids.push_back(pid);
  std::error_code error;
  for (fs::directory_iterator it(group, error), end; !error && it != end; it.increment(error))
    if (it->is_directory(error) && !it->is_symlink(error)) collect_pids(it->path(), pids);
}

}  // namespace

std::optional<int> loopback_port(const std::string& url) {
  auto scheme = url.find("://");
  if (scheme == url.npos) return std::nullopt;
  const bool tls = url.starts_with("https");
  std::string authority = url.substr(scheme + 3);
  authority = authority.substr(0, authority.find_first_of("/?#"));
  if (auto at = authority.rfind('@'); at != authority.npos) authority = authority.substr(at + 1);
  std::string host = authority, port;
  auto bracket = authority.rfind(']');
  auto colon = authority.rfind(':');
  if (colon != authority.npos && (bracket == authority.npos || colon > bracket)) {
    host = authority.substr(0, colon);
    port = authority.substr(colon + 1);
  }
  if (host != "localhost" && host != "[::1]" && !host.starts_with("127.")) return std::nullopt;
  if (port.empty()) return tls ? 443 : 80;
  int number = 0;
  auto [end, error] = std::from_chars(port.data(), port.data() + port.size(), number);
  if (error != std::errc() || end != port.data() + port.size() || number < 1 || number > 65535)
    return std::nullopt;
  return number;
}

std::vector<pid_t> control_group_pids(const Root& root, const std::string& group) {
  std::vector<pid_t> pids;
  if (group.empty()) return pids;
  for (const char* mount : {"/sys/fs/cgroup", "/sys/fs/cgroup/unified", "/sys/fs/cgroup/systemd"}) {
    collect_pids(root(mount + group), pids);
    if (!pids.empty()) break;
  }
  return pids;
}

ListenerAnswer find_listener(const Root& root, int port, const std::string& control_group) {
  std::set<std::string> sockets;
  const bool v4 = add_listening(root("/proc/net/tcp"), port, sockets);
  const bool v6 = add_listening(root("/proc/net/tcp6"), port, sockets);
  if (!v4 && !v6) return {Listener::unknown, "/proc/net/tcp can't be read"};
  if (sockets.empty()) return {Listener::nobody, {}};
  auto pids = control_group_pids(root, control_group);
  if (pids.empty())
    return {Listener::unknown, "the unit's control group has no processes that can be listed"};
  std::size_t unreadable = 0;
  for (pid_t pid : pids) {
    auto held = holds(root, std::to_string(pid), sockets);
    if (held.value_or(false)) return {Listener::ours, {}};
    if (!held) ++unreadable;
  }
  if (unreadable == pids.size())
    return {Listener::unknown, "not permitted to look at the unit's processes"};
  return {Listener::foreign, name_of_holder(root, sockets)};
}

}  // namespace kdtree
