// SPDX-License-Identifier: Apache-2.0
#include "agent/util/subprocess.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <system_error>
#include <tuple>
#include <utility>

#include "agent/util/file.h"
#include "agent/util/interrupt.h"
#include "agent/util/unique_fd.h"

extern char** environ;

namespace kdtree {
namespace {

using Clock = std::chrono::steady_clock;

struct Pipe {
  UniqueFd read, write;
};

std::string error_text(int number) { return std::generic_category().message(number); }

Result<Pipe> make_pipe() {
  std::array<int, 2> ends{};
  if (::pipe2(ends.data(), O_CLOEXEC) != 0)
    return fail(ExitCode::refused, "making a pipe: " + error_text(errno));
  return Pipe{UniqueFd(ends[0]), UniqueFd(ends[1])};
}

std::vector<std::string> child_environment(const Command& command) {
  std::map<std::string, std::string> merged;
  for (char** entry = environ; *entry != nullptr; ++entry) {
    const std::string_view text(*entry);
    const std::size_t equals = text.find('=');
    if (equals != std::string_view::npos)
      merged[std::string(text.substr(0, equals))] = text.substr(equals + 1);
  }
  for (const auto& name : command.unset) merged.erase(name);
  for (const auto& [name, value] : command.environment) merged[name] = value;
  std::vector<std::string> entries;
  entries.reserve(merged.size());
  for (auto& [name, value] : merged) entries.push_back(std::string(name).append("=").append(value));
  return entries;
}

std::vector<char*> pointers(std::vector<std::string>& texts) {
  std::vector<char*> result;
  result.reserve(texts.size() + 1);
  for (auto& text : texts) result.push_back(text.data());
  result.push_back(nullptr);
  return result;
}

// One of the child's output streams: kept up to a limit, handed on by lines.
class Stream {
 public:
  Stream(UniqueFd fd, const Command& command, std::string& kept)
      : fd_(std::move(fd)), command_(command), kept_(kept) {
    ::fcntl(fd_.get(), F_SETFL, O_NONBLOCK);
  }
  int fd() const { return fd_.get(); }
  void drain() {
    char buffer[1 << 14];
    while (fd_) {
      const ssize_t got = ::read(fd_.get(), buffer, sizeof buffer);
      if (got < 0 && errno == EINTR) continue;
      if (got < 0 && errno == EAGAIN) return;
      if (got <= 0) {
        fd_.reset();
        flush();
        return;
      }
      take({buffer, static_cast<std::size_t>(got)});
    }
  }
  void flush() {
    if (!line_.empty() && command_.on_line) command_.on_line(line_);
    line_.clear();
  }

 private:
  void take(std::string_view text) {
    kept_.append(text.substr(
        0, command_.max_output_bytes - std::min(command_.max_output_bytes, kept_.size())));
    if (!command_.on_line) return;
    for (char c : text) {
      if (c == '\n' || line_.size() > 8192) flush();
      if (c != '\n') line_ += c;
    }
  }
  UniqueFd fd_;
  const Command& command_;
  std::string& kept_;
  std::string line_;
};

[[noreturn]] void become(const Command& command, char* const* argv, char* const* environment,
                         int out, int err, int report, pid_t parent) {
  ::setpgid(0, 0);
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (::getppid() != parent) ::_exit(127);
  for (int number : {SIGINT, SIGTERM, SIGHUP, SIGPIPE}) ::signal(number, SIG_DFL);
  const int null = ::open("/dev/null", O_RDONLY | O_CLOEXEC);
  const bool wired = null >= 0 && ::dup2(null, 0) == 0 && ::dup2(out, 1) == 1 &&
                     ::dup2(err, 2) == 2 &&
                     (command.directory.empty() || ::chdir(command.directory.c_str()) == 0);
  if (wired) ::execve(argv[0], argv, environment);
  const int number = errno;
  [[maybe_unused]] const ssize_t told = ::write(report, &number, sizeof number);
  ::_exit(127);
}

// Killed processes end at once, but for those that hang in the kernel (a dead disk, a lost GPU).
constexpr std::chrono::seconds kReapDeadline{5};

class Child {
 public:
  explicit Child(pid_t pid) : pid_(pid) {}
  Child(const Child&) = delete;
  Child& operator=(const Child&) = delete;
  ~Child() { std::ignore = kill(); }

  pid_t pid() const { return pid_; }
  // It has been waited for; what is left of its group goes.
  void ended() { ::kill(-std::exchange(pid_, -1), SIGKILL); }
  // Kills the whole group. False: the child is still there, and is left behind.
  bool kill() {
    if (pid_ <= 0) return true;
    const pid_t pid = std::exchange(pid_, -1);
    ::kill(-pid, SIGKILL);
    const auto until = Clock::now() + kReapDeadline;
    int status = 0;
    while (true) {
      const pid_t gone = ::waitpid(pid, &status, WNOHANG);
      if (gone == pid || (gone < 0 && errno != EINTR)) return true;
      if (Clock::now() >= until) return false;
      ::poll(nullptr, 0, 10);
    }
  }

 private:
  pid_t pid_;
};

std::string seconds_text(std::chrono::milliseconds span) {
  return std::to_string(std::chrono::ceil<std::chrono::seconds>(span).count()) + " s";
}

// `late`: the deadline that has passed; "" = interrupted.
tl::unexpected<Error> stop(Child& child, const std::string& name, const std::string& late) {
  const pid_t pid = child.pid();
  std::string what =
      name + (late.empty() ? " was stopped: interrupted" : " did not end within " + late);
  if (!child.kill()) what += "; process " + std::to_string(pid) + " could not be killed either";
  return fail(ExitCode::refused, what);
}

}  // namespace

std::string Outcome::last_line() const {
  for (const std::string* text : {&errors, &output}) {
    const std::size_t end = text->find_last_not_of(" \t\r\n");
    if (end == std::string::npos) continue;
    const std::size_t newline = text->find_last_of('\n', end);
    const std::size_t begin = newline == std::string::npos ? 0 : newline + 1;
    return text->substr(begin, end - begin + 1);
  }
  return {};
}

std::string find_program(const std::string& name) {
  if (name.find('/') != std::string::npos)
    return ::access(name.c_str(), X_OK) == 0 ? name : std::string();
  const char* path = std::getenv("PATH");
  std::string_view rest =
      path != nullptr ? path : "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin";
  while (!rest.empty()) {
    const std::size_t colon = rest.find(':');
    const auto dir = rest.substr(0, colon);
    std::string candidate = std::string(dir).append("/").append(name);
    if (dir.starts_with('/') && ::access(candidate.c_str(), X_OK) == 0) return candidate;
    if (colon == std::string_view::npos) break;
    rest.remove_prefix(colon + 1);
  }
  return {};
}

Result<Outcome> run_command(const Command& command) {
  if (command.argv.empty()) return fail(ExitCode::refused, "nothing to run");
  const std::string name = command.argv[0];
  std::vector<std::string> argv = command.argv;
  argv[0] = find_program(name);
  if (argv[0].empty())
    return fail(ExitCode::refused, "can't run " + name + ": no such program", "install it");
  std::vector<std::string> environment = child_environment(command);
  auto argv_pointers = pointers(argv);
  auto environment_pointers = pointers(environment);

  KDTREE_TRY_ASSIGN(Pipe out, make_pipe());
  KDTREE_TRY_ASSIGN(Pipe err, make_pipe());
  KDTREE_TRY_ASSIGN(Pipe report, make_pipe());
  const pid_t parent = ::getpid();
  Child child(::fork());
  if (child.pid() < 0)
    return fail(ExitCode::refused, "starting " + name + ": " + error_text(errno));
  if (child.pid() == 0)
    become(command, argv_pointers.data(), environment_pointers.data(), out.write.get(),
           err.write.get(), report.write.get(), parent);
  ::setpgid(child.pid(), child.pid());
  out.write.reset();
  err.write.reset();
  report.write.reset();
  int number = 0;
  if (::read(report.read.get(), &number, sizeof number) == sizeof number)
    return fail(ExitCode::refused, "can't run " + name + ": " + error_text(number));

  Outcome outcome;
  Stream output(std::move(out.read), command, outcome.output);
  Stream errors(std::move(err.read), command, outcome.errors);
  const auto end = Clock::now() + command.deadline;
  int status = 0;
  while (true) {
    const pid_t gone = ::waitpid(child.pid(), &status, WNOHANG);
    pollfd waits[] = {{output.fd(), POLLIN, 0}, {errors.fd(), POLLIN, 0}};
    if (gone == 0) ::poll(waits, 2, output.fd() < 0 && errors.fd() < 0 ? 20 : 100);
    errors.drain();  // what was said first of both at once is progress, then the answer
    output.drain();
    if (gone == child.pid()) break;
    const bool late = Clock::now() >= end;
    if (!late && !interrupted()) continue;
    return stop(child, name, late ? seconds_text(command.deadline) : std::string());
  }
  child.ended();
  output.flush();
  errors.flush();
  if (WIFEXITED(status)) outcome.status = WEXITSTATUS(status);
  if (WIFSIGNALED(status)) outcome.signal = WTERMSIG(status);
  return outcome;
}

}  // namespace kdtree
