// SPDX-License-Identifier: Apache-2.0
#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include "agent/metrics/http_server.h"

namespace kdtree {
namespace {

UniqueFd connect_to(std::uint16_t port) {
  UniqueFd fd(::socket(AF_INET, SOCK_STREAM, 0));
  sockaddr_in to{};
  to.sin_family = AF_INET;
  to.sin_port = htons(port);
  to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  EXPECT_EQ(::connect(fd.get(), reinterpret_cast<sockaddr*>(&to), sizeof to), 0);
  return fd;
}

// What comes back for `request` until the server closes.
std::string exchange(std::uint16_t port, const std::string& request) {
  const UniqueFd fd = connect_to(port);
  EXPECT_EQ(::send(fd.get(), request.data(), request.size(), MSG_NOSIGNAL),
            static_cast<ssize_t>(request.size()));
  std::string answer;
  char buffer[4096];
  for (ssize_t n = 0; (n = ::recv(fd.get(), buffer, sizeof buffer, 0)) > 0;)
    answer.append(buffer, static_cast<std::size_t>(n));
  return answer;
}

std::string request(const std::string& method, const std::string& path) {
  return method + " " + path + " HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n";
}

class HttpServerTest : public testing::Test {
 protected:
  HttpServerTest()
      : server_(HttpServer::start(listen_on("127.0.0.1:0").value(),
                                  [](std::string_view path) -> HttpReply {
                                    if (path == "/throw") throw std::runtime_error("x");
                                    return {path == "/a" ? 200u : 404u, "text/x",
                                            "you asked for " + std::string(path)};
                                  })
                    .value()) {}
  std::unique_ptr<HttpServer> server_;
};

TEST_F(HttpServerTest, AnswersGetAndHead) {
  const auto got = exchange(server_->port(), request("GET", "/a?q=1"));
  EXPECT_EQ(got.substr(0, 15), "HTTP/1.1 200 OK");
  EXPECT_NE(got.find("Content-Type: text/x\r\n"), std::string::npos);
  EXPECT_TRUE(got.ends_with("\r\n\r\nyou asked for /a")) << got;
  const auto head = exchange(server_->port(), request("HEAD", "/a"));
  EXPECT_EQ(head.substr(0, 15), "HTTP/1.1 200 OK");
  EXPECT_TRUE(head.ends_with("\r\n\r\n")) << head;
}

TEST_F(HttpServerTest, RefusesOtherMethodsAndSurvivesAThrow) {
  EXPECT_EQ(exchange(server_->port(), request("POST", "/a")).substr(0, 12), "HTTP/1.1 405");
  EXPECT_EQ(exchange(server_->port(), request("GET", "/throw")).substr(0, 12), "HTTP/1.1 500");
  EXPECT_EQ(exchange(server_->port(), request("GET", "/none")).substr(0, 12), "HTTP/1.1 404");
}

TEST_F(HttpServerTest, ASlowClientDoesntHoldUpAnother) {
  const UniqueFd slow = connect_to(server_->port());
  ASSERT_GT(::send(slow.get(), "GET /a HT", 9, MSG_NOSIGNAL), 0);
  EXPECT_EQ(exchange(server_->port(), request("GET", "/a")).substr(0, 12), "HTTP/1.1 200");
}

TEST_F(HttpServerTest, GarbageIsRefused) {
  EXPECT_FALSE(exchange(server_->port(), "\x16\x03\x01\r\n\r\n").starts_with("HTTP/1.1 200"));
  exchange(server_->port(), request("GET", "/" + std::string(100'000, 'x')));
  EXPECT_EQ(exchange(server_->port(), request("GET", "/a")).substr(0, 12), "HTTP/1.1 200");
}

TEST_F(HttpServerTest, APortInUseIsRefusedWithItsAddress) {
  const std::string address = "127.0.0.1:" + std::to_string(server_->port());
  const auto second = listen_on(address);
  ASSERT_FALSE(second);
  EXPECT_EQ(second.error().code, ExitCode::refused);
  EXPECT_NE(second.error().what.find(address), std::string::npos);
}

TEST(ListenOn, TellsWhatIsNoAddress) {
  for (const char* bad : {"", "9817", "127.0.0.1", ":9817", "127.0.0.1:", "host.example:9817",
                          "127.0.0.1:http", "::1:9817", "127.0.0.1:99999"}) {
    const auto fd = listen_on(bad);
    ASSERT_FALSE(fd) << bad;
    EXPECT_FALSE(fd.error().hint.empty()) << bad;
  }
  EXPECT_TRUE(listen_on("localhost:0"));
}

}  // namespace
}  // namespace kdtree
