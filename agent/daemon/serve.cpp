// SPDX-License-Identifier: Apache-2.0
#include "agent/daemon/serve.h"

#include <poll.h>
#include <sys/signalfd.h>
#include <systemd/sd-daemon.h>

#include <algorithm>
#include <csignal>
#include <cstdio>
#include <vector>

#include "agent/config/config.h"
#include "agent/metrics/exporter.h"

namespace kdtree {
namespace {

constexpr int kTickMs = 1000;

void log_line(const char* priority, const std::string& text) {
  std::fprintf(stderr, "%s%s\n", priority, text.c_str());
}

std::string address_of(const AgentOptions& options) {
  if (options.listen) return *options.listen;
  const auto config = load_config(options.root);
  return config ? config->agent.listen : AgentConfig{}.listen;
}

// A file descriptor that is readable once the process is told to end. Blocks those signals in this
// thread and in all that are started later.
UniqueFd end_signals() {
  sigset_t wanted;
  sigemptyset(&wanted);
  sigaddset(&wanted, SIGTERM);
  sigaddset(&wanted, SIGINT);
  pthread_sigmask(SIG_BLOCK, &wanted, nullptr);
  return UniqueFd(::signalfd(-1, &wanted, SFD_CLOEXEC | SFD_NONBLOCK));
}

class ProblemLog {
 public:
  void update(std::vector<std::string> now) {
    for (const std::string& problem : now)
      if (std::find(known_.begin(), known_.end(), problem) == known_.end())
        log_line(SD_WARNING, problem);
    for (const std::string& problem : known_)
      if (std::find(now.begin(), now.end(), problem) == now.end())
        log_line(SD_NOTICE, "over: " + problem);
    known_ = std::move(now);
  }

 private:
  std::vector<std::string> known_;
};

}  // namespace

Status serve(const AgentOptions& options) {
  const UniqueFd ended = end_signals();
  std::signal(SIGPIPE, SIG_IGN);
  const std::string address = address_of(options);
  KDTREE_TRY_ASSIGN(UniqueFd listener, listen_on(address));

  ExporterOptions wanted;
  wanted.root = options.root;
  wanted.stats_dir = options.stats_dir;
  wanted.gpus.nvml_path = options.nvml;
  const Exporter exporter(std::move(wanted));
  KDTREE_TRY_ASSIGN(const auto server,
                    HttpServer::start(std::move(listener), [&exporter](std::string_view path) {
                      return exporter.answer(path);
                    }));
  log_line(SD_INFO, "serving http://" + address + "/metrics");
  ::sd_notifyf(0, "READY=1\nSTATUS=serving http://%s/metrics", address.c_str());

  ProblemLog log;
  pollfd end{ended.get(), POLLIN, 0};
  while (::poll(&end, 1, kTickMs) <= 0) {
    log.update(exporter.problems());
    if (exporter.turning()) ::sd_notify(0, "WATCHDOG=1");
  }
  ::sd_notify(0, "STOPPING=1");
  log_line(SD_INFO, "told to end");
  return {};
}

}  // namespace kdtree
