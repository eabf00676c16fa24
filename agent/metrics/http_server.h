// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>

#include "agent/metrics/web_config.h"
#include "agent/util/result.h"
#include "agent/util/unique_fd.h"

struct MHD_Daemon;

// A small HTTP/1.1 server over libmicrohttpd, with the TLS and the passwords of a web
// configuration. It takes a listening socket from outside (agent/metrics/listen.h).
namespace kdtree {

struct HttpRequest {
  std::string_view path;    // without query
  std::string_view accept;  // the header's value; "" = none
};

struct HttpReply {
  unsigned status = 200;
  std::string type = "text/plain; charset=utf-8";
  std::string body;
};

// Answers GET and HEAD. Called from one of the server's threads: must not wait.
using HttpHandler = std::function<HttpReply(const HttpRequest& request)>;

class BasicAuth;

class HttpServer {
 public:
  // Listens on a copy of `listener`, so that another server can follow this one on the same
  // socket. Errors: usage: certificate or key can't be used; refused.
  static Result<std::unique_ptr<HttpServer>> start(const UniqueFd& listener, HttpHandler handler,
                                                   WebConfig web = {});
  ~HttpServer();
  HttpServer(const HttpServer&) = delete;
  HttpServer& operator=(const HttpServer&) = delete;

  std::uint16_t port() const { return port_; }  // 0: not a TCP socket

 private:
  HttpServer(HttpHandler handler, WebConfig web);
  HttpHandler handler_;
  const WebConfig web_;
  std::unique_ptr<BasicAuth> auth_;  // null: everybody is let in
  MHD_Daemon* daemon_ = nullptr;
  std::uint16_t port_ = 0;
  friend struct HttpCallback;
};

}  // namespace kdtree
