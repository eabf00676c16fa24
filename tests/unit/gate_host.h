// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <arpa/inet.h>
#include <sys/socket.h>
#include <unistd.h>
#include <zlib.h>

#include <atomic>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <string>
#include <thread>

#include "agent/stats/stats_abi.h"
#include "agent/systemd/service_manager.h"
#include "agent/util/clock.h"
#include "agent/util/mode.h"
#include "agent/util/root.h"

// What the gate's tests need of a host: a folder as root with a /proc of its own, stats files in
// it, a health endpoint, and a service manager that says what the test wants.
namespace kdtree::test {

namespace fs = std::filesystem;

class Folder {
 public:
  Folder() {
    std::string name = (fs::temp_directory_path() / "kdtree-gate-XXXXXX").string();
    path_ = mkdtemp(name.data());
    write("proc/sys/kernel/random/boot_id", "boot-of-this-test\n");
    write("proc/77/stat", "77 (engine) S 1 1 1 0 -1 0 0 0 0 0 0 0 0 0 20 0 1 0 4242 0 0\n");
  }
  ~Folder() { fs::remove_all(path_); }
  Folder(const Folder&) = delete;
  Folder& operator=(const Folder&) = delete;

  Root root() const { return Root(path_); }
  fs::path operator/(const std::string& relative) const { return path_ / relative; }
  void write(const std::string& relative, const std::string& text) const {
    fs::create_directories((path_ / relative).parent_path());
    std::ofstream(path_ / relative, std::ios::binary | std::ios::trunc) << text;
  }

 private:
  fs::path path_;
};

// A rank of process 77 (alive in Folder) as its stats file tells of it; change what the test is
// about.
inline kdtree_stats_header rank_header(int rank, const std::string& release, Mode mode) {
  kdtree_stats_header h{};
  std::memcpy(h.magic, KDTREE_STATS_MAGIC, 8);
  h.version = KDTREE_STATS_VERSION;
  h.header_bytes = KDTREE_STATS_HEADER_BYTES;
  h.file_bytes = KDTREE_STATS_HEADER_BYTES;
  h.sequence = 2;
  h.pid = 77;
  h.pid_start_ticks = 4242;
  std::strcpy(h.boot_id, "boot-of-this-test");
  h.updated_boottime_ns = boottime_ns();
  h.publications = 1;
  h.tp_rank = rank;
  h.tp_size = 8;
  h.moe_ep_rank = h.moe_ep_size = -1;
  std::strncpy(h.release_id, release.c_str(), sizeof h.release_id - 1);
  std::strcpy(h.device_name, "cpu");
  h.patch_state = KDTREE_PATCH_ACTIVE;
  h.mode = static_cast<std::uint32_t>(mode);
  h.sort_state = -1;
  h.graphs = -1;
  h.worst_layer = h.worst_request = h.worst_batch = h.worst_head = -1;
  h.start_mode = -1;
  return h;
}

inline void write_rank(const Folder& folder, const std::string& name, kdtree_stats_header h) {
  h.updated_boottime_ns = boottime_ns();
  const auto* bytes = reinterpret_cast<const unsigned char*>(&h);
  h.crc32 = static_cast<std::uint32_t>(crc32(0, bytes + 40, static_cast<unsigned>(sizeof h - 40)));
  folder.write("run/kdtree/stats/" + name + ".stats",
               std::string(reinterpret_cast<const char*>(&h), sizeof h));
}

// An HTTP endpoint on the loopback that answers `status` to everything; 0 closes without an answer.
class HealthServer {
 public:
  HealthServer() {
    fd_ = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t size = sizeof address;
    if (bind(fd_, reinterpret_cast<sockaddr*>(&address), size) != 0 || listen(fd_, 8) != 0)
      std::abort();
    getsockname(fd_, reinterpret_cast<sockaddr*>(&address), &size);
    port_ = ntohs(address.sin_port);
    thread_ = std::thread([this] { serve(); });
  }
  ~HealthServer() {
    shutdown(fd_, SHUT_RDWR);
    thread_.join();
    close(fd_);
  }
  HealthServer(const HealthServer&) = delete;
  HealthServer& operator=(const HealthServer&) = delete;

  std::string url() const { return "http://127.0.0.1:" + std::to_string(port_) + "/health"; }
  int port() const { return port_; }
  std::atomic<int> status{200};
  std::string body;  // of every answer; set before the first request
  std::atomic<int> asked{0};

 private:
  void serve() {
    while (true) {
      const int client = accept4(fd_, nullptr, nullptr, SOCK_CLOEXEC);
      if (client < 0) return;
      char request[4096];
      if (read(client, request, sizeof request) > 0 && status != 0) {
        const std::string answer = "HTTP/1.1 " + std::to_string(status) +
                                   " X\r\nContent-Length: " + std::to_string(body.size()) +
                                   "\r\nConnection: close\r\n\r\n" + body;
        if (write(client, answer.data(), answer.size()) < 0) std::abort();
      }
      ++asked;
      close(client);
    }
  }

  int fd_ = -1;
  int port_ = 0;
  std::thread thread_;
};

// Says of every unit what `next` says at that moment; changes nothing.
class FakeServices : public ServiceManager {
 public:
  UnitState state;
  std::function<void(UnitState&)> next;  // called before each answer; may be empty

  FakeServices() {
    state.name = "sglang.service";
    state.load_state = "loaded";
    state.active_state = "active";
    state.sub_state = "running";
    state.result = "success";
    state.invocation_id = "new";
    state.main_pid = 77;
  }
  Result<UnitState> unit(const std::string&) override {
    if (next) next(state);
    return state;
  }
  Status daemon_reload(std::chrono::milliseconds) override { return {}; }
  Status start(const std::string&, std::chrono::milliseconds, const JobTick&) override {
    return {};
  }
  Status stop(const std::string&, std::chrono::milliseconds, const JobTick&) override { return {}; }
  Status restart(const std::string&, std::chrono::milliseconds, const JobTick&) override {
    return {};
  }
  Status reset_failed(const std::string&) override { return {}; }
  Status enable(const std::string&) override { return {}; }
  Status disable(const std::string&) override { return {}; }
};

}  // namespace kdtree::test
