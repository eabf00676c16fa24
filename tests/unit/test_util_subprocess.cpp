// SPDX-License-Identifier: Apache-2.0
#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <sys/ptrace.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <csignal>
#include <string>
#include <system_error>
#include <thread>

#include "agent/util/http_get.h"
#include "agent/util/interrupt.h"
#include "agent/util/subprocess.h"

namespace kdtree {
namespace {

Command shell(const std::string& script) {
  Command command;
  command.argv = {"/bin/sh", "-c", script};
  return command;
}

TEST(Subprocess, KeepsStreamsApartAndTheStatus) {
  const auto outcome = run_command(shell("echo out; echo err >&2; exit 3"));
  ASSERT_TRUE(outcome);
  EXPECT_EQ(outcome->status, 3);
  EXPECT_EQ(outcome->output, "out\n");
  EXPECT_EQ(outcome->errors, "err\n");
  EXPECT_EQ(outcome->last_line(), "err");
}

TEST(Subprocess, NoShellTouchesTheArguments) {
  Command command;
  command.argv = {"printf", "%s|", "a b", "$HOME", "`x`"};
  EXPECT_EQ(run_command(command)->output, "a b|$HOME|`x`|");
}

TEST(Subprocess, EnvironmentIsAddedAndTakenAway) {
  ::setenv("KDTREE_TEST_OLD", "1", 1);
  auto command = shell("echo \"$KDTREE_TEST_OLD,$KDTREE_TEST_NEW\"");
  command.environment["KDTREE_TEST_NEW"] = "2";
  command.unset = {"KDTREE_TEST_OLD"};
  EXPECT_EQ(run_command(command)->output, ",2\n");
}

TEST(Subprocess, LinesComeOneByOne) {
  std::vector<std::string> lines;
  auto command = shell("printf 'a\\nb\\n'; printf c");
  command.on_line = [&](std::string_view line) { lines.emplace_back(line); };
  ASSERT_TRUE(run_command(command));
  EXPECT_EQ(lines, (std::vector<std::string>{"a", "b", "c"}));
}

TEST(Subprocess, OutputIsBoundedAndDrained) {
  auto command = shell("head -c 3000000 /dev/zero; echo end >&2");
  command.max_output_bytes = 1000;
  const auto outcome = run_command(command);
  ASSERT_TRUE(outcome);
  EXPECT_EQ(outcome->output.size(), 1000u);
  EXPECT_EQ(outcome->errors, "end\n");
}

TEST(Subprocess, MissingProgramAndDeadlineAreErrors) {
  Command missing;
  missing.argv = {"/no/such/program"};
  EXPECT_NE(run_command(missing).error().what.find("no such program"), std::string::npos);
  auto slow = shell("sleep 60");
  slow.deadline = std::chrono::milliseconds(50);
  EXPECT_NE(run_command(slow).error().what.find("did not end within"), std::string::npos);
}

// A process that another one traces stays a zombie, whatever its parent does: as one that hangs in
// the kernel, it can't be waited for.
TEST(Subprocess, AChildThatCannotBeReapedIsLeftBehindAndSaid) {
  std::array<int, 2> pids{};
  ASSERT_EQ(::pipe(pids.data()), 0);
  const pid_t tracer = ::fork();
  if (tracer == 0) {
    pid_t pid = 0;
    const bool held = ::read(pids[0], &pid, sizeof pid) == sizeof pid &&
                      ::ptrace(PTRACE_SEIZE, pid, nullptr, nullptr) == 0;
    if (!held) ::_exit(1);
    ::pause();
  }
  auto stuck = shell("echo $$; exec sleep 60");
  stuck.on_line = [&](std::string_view line) {
    const pid_t pid = std::stoi(std::string(line));
    ASSERT_EQ(::write(pids[1], &pid, sizeof pid), static_cast<ssize_t>(sizeof pid));
  };
  stuck.deadline = std::chrono::milliseconds(500);
  const auto outcome = run_command(stuck);
  int status = 0;
  const bool refused = ::waitpid(tracer, &status, WNOHANG) == tracer;
  if (!refused) {
    ::kill(tracer, SIGKILL);
    ::waitpid(tracer, &status, 0);
  }
  ::close(pids[0]);
  ::close(pids[1]);
  if (refused) GTEST_SKIP() << "this machine lets nobody trace";
  ASSERT_FALSE(outcome);
  EXPECT_NE(outcome.error().what.find("could not be killed"), std::string::npos)
      << outcome.error().what;
}

TEST(Subprocess, SignalsAreSaid) {
  const auto outcome = run_command(shell("kill -9 $$"));
  ASSERT_TRUE(outcome);
  EXPECT_EQ(outcome->status, -1);
  EXPECT_EQ(outcome->signal, SIGKILL);
}

TEST(Interrupt, StopsASubprocessAndIsForgottenOnRequest) {
  const InterruptGuard guard;
  ::raise(SIGTERM);
  EXPECT_TRUE(interrupted());
  EXPECT_NE(run_command(shell("sleep 60")).error().what.find("interrupted"), std::string::npos);
  clear_interrupt();
  ::raise(SIGINT);
  EXPECT_FALSE(interrupted()) << "going back is not to be stopped";
}

// Answers one connection with `answer`.
class OneAnswer {
 public:
  explicit OneAnswer(std::string answer) : answer_(std::move(answer)) {
    fd_ = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    sockaddr_in at{};
    at.sin_family = AF_INET;
    at.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    if (::bind(fd_, reinterpret_cast<sockaddr*>(&at), sizeof at) != 0 || ::listen(fd_, 1) != 0)
      throw std::system_error(errno, std::generic_category(), "listen");
    socklen_t size = sizeof at;
    ::getsockname(fd_, reinterpret_cast<sockaddr*>(&at), &size);
    url = "http://127.0.0.1:" + std::to_string(ntohs(at.sin_port)) + "/health";
    thread_ = std::thread([this] {
      const int client = ::accept(fd_, nullptr, nullptr);
      char buffer[4096];
      if (::read(client, buffer, sizeof buffer) > 0 && !answer_.empty()) [[maybe_unused]]
        const auto sent = ::write(client, answer_.data(), answer_.size());
      if (answer_.empty()) ::read(client, buffer, sizeof buffer);
      ::close(client);
    });
  }
  ~OneAnswer() {
    thread_.join();
    ::close(fd_);
  }
  std::string url;

 private:
  std::string answer_;
  int fd_ = -1;
  std::thread thread_;
};

TEST(HttpGet, GivesStatusAndBodyAndFollowsNothing) {
  OneAnswer ok("HTTP/1.1 503 Service Unavailable\r\nContent-Length: 4\r\n\r\nwait");
  const auto answer = http_get(ok.url, std::chrono::seconds(5));
  ASSERT_TRUE(answer) << answer.error().what;
  EXPECT_EQ(answer->status, 503);
  EXPECT_EQ(answer->body, "wait");
  OneAnswer redirect(
      "HTTP/1.1 302 Found\r\nLocation: http://127.0.0.1:1/\r\nContent-Length: 0\r\n\r\n");
  EXPECT_EQ(http_get(redirect.url, std::chrono::seconds(5))->status, 302);
}

TEST(HttpGet, NoAnswerIsAnError) {
  OneAnswer silent("");
  const auto answer = http_get(silent.url, std::chrono::milliseconds(50));
  ASSERT_FALSE(answer);
  EXPECT_NE(answer.error().what.find(silent.url), std::string::npos);
  EXPECT_FALSE(http_get("file:///etc/passwd", std::chrono::seconds(1)));
}

}  // namespace
}  // namespace kdtree
