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
#include "agent/daemon/web_listener.h"
#include "agent/metrics/exporter.h"

namespace kdtree {
namespace {

constexpr int kTickMs = 1000;

void log_line(const char* priority, const std::string& text) {
  std::fprintf(stderr, "%s%s\n", priority, text.c_str());
}

AgentConfig agent_config(const AgentOptions& options) {
  const auto config = load_config(options.root);
  AgentConfig agent = config ? config->agent : AgentConfig{};
  if (options.listen) agent.listen = *options.listen;
  if (options.web_config) agent.web_config = *options.web_config;
  return agent;
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
  const AgentConfig agent = agent_config(options);
  ExporterOptions wanted;
  wanted.root = options.root;
  wanted.stats_dir = options.stats_dir;
  wanted.gpus.nvml_path = options.nvml;

  KDTREE_TRY_ASSIGN(WebListener listener, WebListener::open(agent.listen, agent.web_config));
  const Exporter exporter(std::move(wanted));
  KDTREE_TRY(
      listener.serve([&exporter](const HttpRequest& request) { return exporter.answer(request); }));
  const std::string address = listener.address();
  log_line(SD_INFO, "serving " + address);
  ::sd_notifyf(0, "READY=1\nSTATUS=serving %s", address.c_str());

  ProblemLog log;
  pollfd end{ended.get(), POLLIN, 0};
  while (::poll(&end, 1, kTickMs) <= 0) {
    listener.follow();
    std::vector<std::string> problems = exporter.problems();
    if (!listener.problem().empty()) problems.push_back(listener.problem());
    log.update(std::move(problems));
    if (exporter.turning()) ::sd_notify(0, "WATCHDOG=1");
  }
  listener.stop();
  ::sd_notify(0, "STOPPING=1");
  log_line(SD_INFO, "told to end");
  return {};
}

}  // namespace kdtree
