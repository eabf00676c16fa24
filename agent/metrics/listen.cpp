// SPDX-License-Identifier: Apache-2.0
#include "agent/metrics/listen.h"

#include <netdb.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>

#include <charconv>
#include <cstdint>
#include <cstring>
#include <memory>
#include <utility>

namespace kdtree {
namespace {

constexpr std::string_view kUnix = "unix:";
constexpr int kBacklog = 64;

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

tl::unexpected<Error> cant_listen(const std::string& address, const std::string& hint) {
  return fail(ExitCode::refused, "can't listen on " + address + ": " + std::strerror(errno), hint);
}

// True: `path` is a socket, and nobody listens on it.
bool is_left_over(const sockaddr_un& at) {
  struct stat info {};
  if (::lstat(at.sun_path, &info) != 0 || !S_ISSOCK(info.st_mode)) return false;
  const UniqueFd probe(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  return ::connect(probe.get(), reinterpret_cast<const sockaddr*>(&at), sizeof at) != 0 &&
         errno == ECONNREFUSED;
}

Result<UniqueFd> listen_on_path(const std::string& address) {
  const std::string path = address.substr(kUnix.size());
  sockaddr_un at{};
  at.sun_family = AF_UNIX;
  if (!path.starts_with('/') || path.size() >= sizeof at.sun_path)
    return fail(ExitCode::usage, "'" + address + "' is not an address to listen on",
                "write unix: and an absolute path of at most 107 bytes");
  std::memcpy(at.sun_path, path.c_str(), path.size() + 1);
  if (is_left_over(at)) ::unlink(path.c_str());
  UniqueFd fd(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!fd || ::bind(fd.get(), reinterpret_cast<const sockaddr*>(&at), sizeof at) != 0 ||
      ::chmod(path.c_str(), 0660) != 0 || ::listen(fd.get(), kBacklog) != 0)
    return cant_listen(address, "the folder must be there and ours, and the path free");
  return fd;
}

}  // namespace

Result<UniqueFd> listen_on(const std::string& address) {
  if (address.starts_with(kUnix)) return listen_on_path(address);
  const auto [host, port] = split_address(address);
  if (host.empty() || !is_port(port))
    return fail(ExitCode::usage, "'" + address + "' is not an address to listen on",
                "write host:port, as in 127.0.0.1:9817, or unix:/path");
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
      ::bind(fd.get(), found->ai_addr, found->ai_addrlen) != 0 || ::listen(fd.get(), kBacklog) != 0)
    return cant_listen(address, "choose another agent.listen, or see what has it: ss -ltnp");
  return fd;
}

bool is_beyond_loopback(int listener) {
  sockaddr_storage bound{};
  socklen_t length = sizeof bound;
  if (::getsockname(listener, reinterpret_cast<sockaddr*>(&bound), &length) != 0) return true;
  if (bound.ss_family == AF_UNIX) return false;
  if (bound.ss_family == AF_INET)
    return (ntohl(reinterpret_cast<sockaddr_in*>(&bound)->sin_addr.s_addr) >> 24) != 127;
  return bound.ss_family != AF_INET6 ||
         !IN6_IS_ADDR_LOOPBACK(&reinterpret_cast<sockaddr_in6*>(&bound)->sin6_addr);
}

bool is_loopback_address(const std::string& address) {
  if (address.starts_with(kUnix)) return true;
  const auto [host, port] = split_address(address);
  return host.starts_with("127.") || host == "::1";
}

std::string shown_address(const std::string& address, bool tls) {
  if (address.starts_with(kUnix)) return address;
  return (tls ? "https://" : "http://") + address;
}

}  // namespace kdtree
