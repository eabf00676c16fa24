// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "agent/metrics/http_server.h"

namespace kdtree {

// The agent's address and who may use it. Follows the web configuration and the files that it
// names: a changed password or certificate is in force within a tick, without a restart; one that
// can't be read closes the door (every request is answered with 500) until it is repaired.
class WebListener {
 public:
  // `web_config` "" = none. Errors: usage, refused; refused too: an address beyond loopback without
  // TLS and passwords or client certificates.
  static Result<WebListener> open(const std::string& address, const std::string& web_config);

  // Starts to answer. Errors: as HttpServer::start.
  Status serve(HttpHandler handler);

  // To be called now and then: looks at the files.
  void follow();

  void stop() { server_.reset(); }  // the handler is not called any more once this returns

  const std::string& problem() const { return problem_; }  // "" = none
  std::string address() const;                             // for people

 private:
  WebListener() = default;
  Status reload();
  Status restart(const WebConfig& web, const HttpHandler& handler);

  std::string address_;
  std::filesystem::path web_config_;
  UniqueFd listener_;
  WebConfig web_;
  std::string stamps_;  // of web_.files, as loaded
  HttpHandler handler_;
  std::unique_ptr<HttpServer> server_;
  std::string problem_;
};

}  // namespace kdtree
