// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>

#include "agent/util/result.h"
#include "agent/util/unique_fd.h"

struct MHD_Daemon;

// A small HTTP/1.1 server over libmicrohttpd, which can add TLS and basic authentication to the
// same listener. It takes a listening socket from outside, so that it may as well be a Unix socket
// or one that systemd hands over.
namespace kdtree {

struct HttpReply {
  unsigned status = 200;
  std::string type = "text/plain; charset=utf-8";
  std::string body;
};

// Answers GET (and HEAD) of `path`, without query. Called from the server's thread: must not wait.
using HttpHandler = std::function<HttpReply(std::string_view path)>;

// A listening TCP socket at "host:port" or "[v6]:port"; host is a numeric address or "localhost";
// port 0 = any free one. Errors: usage (not an address), refused (in use, not allowed, not an
// address of this host).
Result<UniqueFd> listen_on(const std::string& address);

class HttpServer {
 public:
  static Result<std::unique_ptr<HttpServer>> start(UniqueFd listener, HttpHandler handler);
  ~HttpServer();
  HttpServer(const HttpServer&) = delete;
  HttpServer& operator=(const HttpServer&) = delete;

  std::uint16_t port() const { return port_; }  // 0: not a TCP socket

 private:
  explicit HttpServer(HttpHandler handler) : handler_(std::move(handler)) {}
  HttpHandler handler_;
  MHD_Daemon* daemon_ = nullptr;
  std::uint16_t port_ = 0;
  friend struct HttpCallback;
};

}  // namespace kdtree
