// SPDX-License-Identifier: Apache-2.0
#include "agent/metrics/http_server.h"

#include <fcntl.h>
#include <gnutls/gnutls.h>
#include <microhttpd.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <cstdarg>
#include <cstdlib>
#include <vector>

#include "agent/metrics/basic_auth.h"

namespace kdtree {
namespace {

constexpr unsigned kConnections = 32;
constexpr unsigned kIdleSeconds = 10;
constexpr std::size_t kBytesPerConnection = 16 * 1024;  // request line and headers
// So that a check of a password holds up the others for a while at most.
constexpr unsigned kThreadsWithPasswords = 3;

std::uint16_t port_of(int fd) {
  sockaddr_storage bound{};
  socklen_t length = sizeof bound;
  if (::getsockname(fd, reinterpret_cast<sockaddr*>(&bound), &length) != 0) return 0;
  if (bound.ss_family == AF_INET) return ntohs(reinterpret_cast<sockaddr_in*>(&bound)->sin_port);
  if (bound.ss_family == AF_INET6) return ntohs(reinterpret_cast<sockaddr_in6*>(&bound)->sin6_port);
  return 0;
}

HttpReply plain(unsigned status, const char* text) {
  return {status, "text/plain; charset=utf-8", text};
}

std::string_view header_of(MHD_Connection* connection, const char* name) {
  const char* value = MHD_lookup_connection_value(connection, MHD_HEADER_KIND, name);
  return value != nullptr ? value : "";
}

}  // namespace

struct HttpCallback {
  static bool has_password(HttpServer& server, MHD_Connection* connection) {
    if (server.auth_ == nullptr) return true;
    char* password = nullptr;
    char* name = MHD_basic_auth_get_username_password(connection, &password);
    const bool fits =
        name != nullptr && password != nullptr && server.auth_->allows(name, password);
    ::free(name);
    ::free(password);
    return fits;
  }

  static bool has_certificate(const HttpServer& server, MHD_Connection* connection) {
    if (!server.web_.tls || server.web_.tls->client_ca.empty()) return true;
    const MHD_ConnectionInfo* info =
        MHD_get_connection_info(connection, MHD_CONNECTION_INFO_GNUTLS_SESSION);
    unsigned problems = 0;
    return info != nullptr && info->tls_session != nullptr &&
           gnutls_certificate_verify_peers2(static_cast<gnutls_session_t>(info->tls_session),
                                            &problems) == GNUTLS_E_SUCCESS &&
           problems == 0;
  }

  static HttpReply reply_to(HttpServer& server, MHD_Connection* connection, std::string_view method,
                            std::string_view path) {
    if (!has_certificate(server, connection))
      return plain(MHD_HTTP_FORBIDDEN, "a client certificate is needed\n");
    if (!has_password(server, connection))
      return plain(MHD_HTTP_UNAUTHORIZED, "a name and a password are needed\n");
    if (method != MHD_HTTP_METHOD_GET && method != MHD_HTTP_METHOD_HEAD)
      return plain(MHD_HTTP_METHOD_NOT_ALLOWED, "only GET\n");
    try {
      return server.handler_({path, header_of(connection, MHD_HTTP_HEADER_ACCEPT)});
    } catch (const std::exception&) {
      return plain(MHD_HTTP_INTERNAL_SERVER_ERROR, "internal error\n");
    }
  }

  static void add_headers(const HttpServer& server, const HttpReply& reply,
                          MHD_Response* response) {
    MHD_add_response_header(response, MHD_HTTP_HEADER_CONTENT_TYPE, reply.type.c_str());
    MHD_add_response_header(response, MHD_HTTP_HEADER_VARY, MHD_HTTP_HEADER_ACCEPT);
    std::map<std::string, std::string> headers{
        {"X-Content-Type-Options", "nosniff"},
        {"X-Frame-Options", "deny"},
        {"Cache-Control", "no-store"},
        {"Content-Security-Policy",
         "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; base-uri "
         "'none'; form-action 'none'"}};
    for (const auto& [name, text] : server.web_.headers) headers[name] = text;
    for (const auto& [name, text] : headers)
      MHD_add_response_header(response, name.c_str(), text.c_str());
    if (reply.status == MHD_HTTP_METHOD_NOT_ALLOWED)
      MHD_add_response_header(response, MHD_HTTP_HEADER_ALLOW, "GET, HEAD");
    if (reply.status == MHD_HTTP_UNAUTHORIZED)
      MHD_add_response_header(response, MHD_HTTP_HEADER_WWW_AUTHENTICATE,
                              "Basic realm=\"kdtree-agent\"");
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
    auto& server = *static_cast<HttpServer*>(self);
    HttpReply reply = reply_to(server, connection, method, url);
    MHD_Response* response = MHD_create_response_from_buffer(reply.body.size(), reply.body.data(),
                                                             MHD_RESPMEM_MUST_COPY);
    if (response == nullptr) return MHD_NO;
    add_headers(server, reply, response);
    const MHD_Result queued = MHD_queue_response(connection, reply.status, response);
    MHD_destroy_response(response);
    return queued;
  }

  static void no_log(void*, const char*, va_list) {}
};

HttpServer::HttpServer(HttpHandler handler, WebConfig web)
    : handler_(std::move(handler)), web_(std::move(web)) {
  if (!web_.users.empty()) auth_ = std::make_unique<BasicAuth>(web_.users);
}

Result<std::unique_ptr<HttpServer>> HttpServer::start(const UniqueFd& listener, HttpHandler handler,
                                                      WebConfig web) {
  std::unique_ptr<HttpServer> server(new HttpServer(std::move(handler), std::move(web)));
  server->port_ = port_of(listener.get());
  const int fd = ::fcntl(listener.get(), F_DUPFD_CLOEXEC, 0);  // the daemon closes its own
  unsigned flags =
      MHD_USE_EPOLL | MHD_USE_INTERNAL_POLLING_THREAD | MHD_USE_ITC | MHD_USE_ERROR_LOG;
  std::vector<MHD_OptionItem> options{
      {MHD_OPTION_LISTEN_SOCKET, fd, nullptr},
      {MHD_OPTION_CONNECTION_LIMIT, kConnections, nullptr},
      {MHD_OPTION_CONNECTION_TIMEOUT, kIdleSeconds, nullptr},
      {MHD_OPTION_CONNECTION_MEMORY_LIMIT, kBytesPerConnection, nullptr}};
  const auto text = [&](MHD_OPTION option, const std::string& value) {
    options.push_back({option, 0, const_cast<char*>(value.c_str())});
  };
  if (server->auth_ != nullptr)
    options.push_back({MHD_OPTION_THREAD_POOL_SIZE, kThreadsWithPasswords, nullptr});
  if (const auto& tls = server->web_.tls) {
    flags |= MHD_USE_TLS;
    text(MHD_OPTION_HTTPS_MEM_CERT, tls->certificate);
    text(MHD_OPTION_HTTPS_MEM_KEY, tls->key);
    text(MHD_OPTION_HTTPS_PRIORITIES, tls->priorities);
    if (!tls->client_ca.empty()) text(MHD_OPTION_HTTPS_MEM_TRUST, tls->client_ca);
  }
  options.push_back({MHD_OPTION_END, 0, nullptr});
  server->daemon_ = MHD_start_daemon(
      flags, 0, nullptr, nullptr, &HttpCallback::answer, server.get(), MHD_OPTION_EXTERNAL_LOGGER,
      &HttpCallback::no_log, nullptr, MHD_OPTION_ARRAY, options.data(), MHD_OPTION_END);
  if (server->daemon_ == nullptr) {
    ::close(fd);
    if (server->web_.tls)
      return fail(ExitCode::usage, "the HTTPS server could not start",
                  "do tls_server_config's certificate and key belong together? Compare: openssl "
                  "x509 -noout -pubkey -in CERT; openssl pkey -pubout -in KEY");
    return fail(ExitCode::refused, "the HTTP server could not start");
  }
  return server;
}

HttpServer::~HttpServer() {
  if (daemon_ == nullptr) return;
  // Takes the socket away first: MHD_stop_daemon() would shut it down, for who follows us too.
  const UniqueFd listener(MHD_quiesce_daemon(daemon_));
  MHD_stop_daemon(daemon_);
}

}  // namespace kdtree
