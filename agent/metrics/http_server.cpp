// SPDX-License-Identifier: Apache-2.0
#include "agent/metrics/http_server.h"

#include <fcntl.h>
#include <microhttpd.h>
#include <netdb.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <charconv>
#include <cstring>
#include <utility>

namespace kdtree {
namespace {

constexpr unsigned kConnections = 32;
constexpr unsigned kIdleSeconds = 10;
constexpr std::size_t kBytesPerConnection = 16 * 1024;  // request line and headers

struct FreeAddresses {
  void operator()(addrinfo* list) const { ::freeaddrinfo(list); }
};

std::pair<std::string, std::string> split_address(const std::string& address) {
  const auto colon = address.rfind(':');
  if (colon == std::string::npos) return {};
  std::string host = address.substr(0, colon);
  if (host.size() > 2 && host.front() == '[' && host.back() == ']')
    host = host.substr(1, host.size() - 2);
  else if (host.find(':') != std::string::npos)
    return {};
  if (host == "localhost") host = "127.0.0.1";
  return {host, address.substr(colon + 1)};
}

// getaddrinfo() takes 99999 for 34463.
bool is_port(std::string_view text) {
  std::uint16_t port = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), port);
  return error == std::errc{} && end == text.data() + text.size();
}

std::uint16_t port_of(int fd) {
  sockaddr_storage bound{};
  socklen_t length = sizeof bound;
  if (::getsockname(fd, reinterpret_cast<sockaddr*>(&bound), &length) != 0) return 0;
  if (bound.ss_family == AF_INET) return ntohs(reinterpret_cast<sockaddr_in*>(&bound)->sin_port);
  if (bound.ss_family == AF_INET6) return ntohs(reinterpret_cast<sockaddr_in6*>(&bound)->sin6_port);
  return 0;
}

}  // namespace

struct HttpCallback {
  static HttpReply reply_to(const HttpServer& server, std::string_view method,
                            std::string_view path) {
    if (method != MHD_HTTP_METHOD_GET && method != MHD_HTTP_METHOD_HEAD)
      return {MHD_HTTP_METHOD_NOT_ALLOWED, "text/plain; charset=utf-8", "only GET\n"};
    try {
      return server.handler_(path);
    } catch (const std::exception&) {
      return {MHD_HTTP_INTERNAL_SERVER_ERROR, "text/plain; charset=utf-8", "internal error\n"};
    }
  }

  static MHD_Result answer(void* self, MHD_Connection* connection, const char* url,
                           const char* method, const char*, const char*, std::size_t* upload_bytes,
                           void** request) {
    static int headers_seen;
    if (*request == nullptr) {
      *request = &headers_seen;
      return MHD_YES;
    }
    if (*upload_bytes != 0) {  // a body is read and dropped
      *upload_bytes = 0;
      return MHD_YES;
    }
    HttpReply reply = reply_to(*static_cast<HttpServer*>(self), method, url);
    MHD_Response* response = MHD_create_response_from_buffer(reply.body.size(), reply.body.data(),
                                                             MHD_RESPMEM_MUST_COPY);
    if (response == nullptr) return MHD_NO;
    MHD_add_response_header(response, MHD_HTTP_HEADER_CONTENT_TYPE, reply.type.c_str());
    MHD_add_response_header(response, "X-Content-Type-Options", "nosniff");
    if (reply.status == MHD_HTTP_METHOD_NOT_ALLOWED)
      MHD_add_response_header(response, MHD_HTTP_HEADER_ALLOW, "GET, HEAD");
    const MHD_Result queued = MHD_queue_response(connection, reply.status, response);
    MHD_destroy_response(response);
    return queued;
  }

  static void no_log(void*, const char*, va_list) {}
};

Result<UniqueFd> listen_on(const std::string& address) {
  const auto [host, port] = split_address(address);
  if (host.empty() || !is_port(port))
    return fail(ExitCode::usage, "'" + address + "' is not an address to listen on",
                "write host:port, as in 127.0.0.1:9817");
  addrinfo hints{};
  hints.ai_flags = AI_NUMERICHOST | AI_NUMERICSERV | AI_PASSIVE;
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  if (const int failed = ::getaddrinfo(host.c_str(), port.c_str(), &hints, &found); failed != 0)
    return fail(ExitCode::usage,
                "'" + address + "' is not an address to listen on: " + ::gai_strerror(failed),
                "write a numeric host and a port, as in 127.0.0.1:9817");
  const std::unique_ptr<addrinfo, FreeAddresses> list(found);
  UniqueFd fd(::socket(found->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  const int yes = 1;
  if (!fd || ::setsockopt(fd.get(), SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes) != 0 ||
      ::bind(fd.get(), found->ai_addr, found->ai_addrlen) != 0 || ::listen(fd.get(), 64) != 0)
    return fail(ExitCode::refused, "can't listen on " + address + ": " + std::strerror(errno),
                "choose another agent.listen, or see what has it: ss -ltnp");
  return fd;
}

Result<std::unique_ptr<HttpServer>> HttpServer::start(UniqueFd listener, HttpHandler handler) {
  std::unique_ptr<HttpServer> server(new HttpServer(std::move(handler)));
  server->port_ = port_of(listener.get());
  const int fd = ::fcntl(listener.get(), F_DUPFD_CLOEXEC, 0);  // the daemon closes its own
  server->daemon_ = MHD_start_daemon(
      MHD_USE_EPOLL | MHD_USE_INTERNAL_POLLING_THREAD | MHD_USE_ERROR_LOG, 0, nullptr, nullptr,
      &HttpCallback::answer, server.get(), MHD_OPTION_EXTERNAL_LOGGER, &HttpCallback::no_log,
      nullptr, MHD_OPTION_LISTEN_SOCKET, fd, MHD_OPTION_CONNECTION_LIMIT, kConnections,
      MHD_OPTION_CONNECTION_TIMEOUT, kIdleSeconds, MHD_OPTION_CONNECTION_MEMORY_LIMIT,
      kBytesPerConnection, MHD_OPTION_END);
  if (server->daemon_ == nullptr) {
    ::close(fd);
    return fail(ExitCode::refused, "the HTTP server could not start");
  }
  return server;
}

HttpServer::~HttpServer() {
  if (daemon_ != nullptr) MHD_stop_daemon(daemon_);
}

}  // namespace kdtree
