// SPDX-License-Identifier: Apache-2.0
#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <filesystem>
#include <fstream>

#include "agent/metrics/http_server.h"
#include "agent/metrics/listen.h"

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

std::string request(const std::string& method, const std::string& path,
                    const std::string& headers = {}) {
  return method + " " + path + " HTTP/1.1\r\nHost: x\r\nConnection: close\r\n" + headers + "\r\n";
}

class HttpServerTest : public testing::Test {
 protected:
  HttpServerTest()
      : server_(HttpServer::start(listen_on("127.0.0.1:0").value(),
                                  [](const HttpRequest& request) -> HttpReply {
                                    if (request.path == "/throw") throw std::runtime_error("x");
                                    return {request.path == "/a" ? 200u : 404u, "text/x",
                                            "you asked for " + std::string(request.path) +
                                                std::string(request.accept)};
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

TEST_F(HttpServerTest, TellsTheHandlerWhatIsAccepted) {
  EXPECT_TRUE(exchange(server_->port(), request("GET", "/a", "accept: text/y\r\n"))
                  .ends_with("you asked for /atext/y"));
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

TEST(HttpServer, AnotherOneCanFollowOnTheSameSocket) {
  const auto listener = listen_on("127.0.0.1:0").value();
  for (const char* text : {"first", "second"}) {
    const auto server = HttpServer::start(listener, [&](const HttpRequest&) {
      return HttpReply{200, "text/x", text};
    });
    ASSERT_TRUE(server);
    EXPECT_TRUE(exchange((*server)->port(), request("GET", "/")).ends_with(text));
  }
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

TEST(ListenOn, AUnixSocketIsForOwnerAndGroupAndReplacesOnlyADeadOne) {
  char folder[] = "/tmp/kdtree-listen-XXXXXX";
  ASSERT_NE(::mkdtemp(folder), nullptr);
  const std::string path = std::string(folder) + "/agent.sock";
  {
    const auto fd = listen_on("unix:" + path);
    ASSERT_TRUE(fd) << fd.error().what;
    EXPECT_EQ(std::filesystem::status(path).permissions(), std::filesystem::perms(0660));
    EXPECT_FALSE(is_beyond_loopback(fd->get()));
    EXPECT_EQ(listen_on("unix:" + path).error().code, ExitCode::refused);  // that one lives
  }
  EXPECT_TRUE(listen_on("unix:" + path));
  std::filesystem::remove(path);
  std::ofstream(path) << "mine";
  EXPECT_FALSE(listen_on("unix:" + path));
  EXPECT_TRUE(std::filesystem::is_regular_file(path));
  EXPECT_EQ(listen_on("unix:relative").error().code, ExitCode::usage);
  std::filesystem::remove_all(folder);
}

TEST(ListenOn, KnowsWhatIsBeyondLoopback) {
  EXPECT_FALSE(is_beyond_loopback(listen_on("127.0.0.1:0")->get()));
  EXPECT_FALSE(is_beyond_loopback(listen_on("127.9.9.9:0")->get()));
  EXPECT_TRUE(is_beyond_loopback(listen_on("0.0.0.0:0")->get()));
  if (const auto v6 = listen_on("[::1]:0")) {
    EXPECT_FALSE(is_beyond_loopback(v6->get()));
  }
  if (const auto v6 = listen_on("[::]:0")) {
    EXPECT_TRUE(is_beyond_loopback(v6->get()));
  }
}

}  // namespace
}  // namespace kdtree
