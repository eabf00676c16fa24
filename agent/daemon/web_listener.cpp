// SPDX-License-Identifier: Apache-2.0
#include "agent/daemon/web_listener.h"

#include <sys/stat.h>

#include "agent/metrics/listen.h"

namespace kdtree {
namespace {

// Differs once a file was written or replaced.
std::string stamps_of(const std::vector<std::filesystem::path>& files) {
  std::string stamps;
  for (const auto& file : files) {
    struct stat info {};
    if (::stat(file.c_str(), &info) == 0)
      for (const long long part :
           {static_cast<long long>(info.st_ino), static_cast<long long>(info.st_size),
            static_cast<long long>(info.st_mtim.tv_sec),
            static_cast<long long>(info.st_mtim.tv_nsec)})
        (stamps += std::to_string(part)) += ' ';
    stamps += '\n';
  }
  return stamps;
}

HttpReply closed(const HttpRequest&) {
  return {500, "text/plain; charset=utf-8", "the web configuration can't be used\n"};
}

}  // namespace

Result<WebListener> WebListener::open(const std::string& address, const std::string& web_config) {
  WebListener made;
  made.address_ = address;
  made.web_config_ = web_config;
  KDTREE_TRY_ASSIGN(made.web_, load_web_config(made.web_config_));
  made.stamps_ = stamps_of(made.web_.files);
  KDTREE_TRY_ASSIGN(made.listener_, listen_on(address));
  if (is_beyond_loopback(made.listener_.get()) && !made.web_.is_closed())
    return fail(
        ExitCode::refused,
        "can't listen on " + address +
            ": it is beyond loopback, and without TLS and passwords (or client certificates)",
        "name a web configuration in agent.web_config, or listen on 127.0.0.1");
  return made;
}

Status WebListener::restart(const WebConfig& web, const HttpHandler& handler) {
  server_.reset();
  KDTREE_TRY_ASSIGN(server_, HttpServer::start(listener_, handler, web));
  return {};
}

Status WebListener::serve(HttpHandler handler) {
  handler_ = std::move(handler);
  return restart(web_, handler_);
}

Status WebListener::reload() {
  const auto files = web_.files;
  stamps_ = stamps_of(files);  // first, so that a change while we read is seen the next time
  KDTREE_TRY_ASSIGN(WebConfig web, load_web_config(web_config_));
  if (is_beyond_loopback(listener_.get()) && !web.is_closed())
    return fail(ExitCode::usage, web_config_.string() + " would open the address to everybody");
  if (web.files != files) stamps_ = stamps_of(web.files);
  web_ = std::move(web);
  return restart(web_, handler_);
}

void WebListener::follow() {
  if (web_config_.empty() || stamps_of(web_.files) == stamps_) return;
  const auto reloaded = reload();
  problem_ = reloaded ? "" : reloaded.error().what;
  if (reloaded) return;
  WebConfig nobody;  // nothing is told, so no password is needed to hear it
  nobody.tls = web_.tls;
  if (!restart(nobody, closed)) server_.reset();
}

std::string WebListener::address() const { return shown_address(address_, web_.tls.has_value()); }

}  // namespace kdtree
