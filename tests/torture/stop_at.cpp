// SPDX-License-Identifier: Apache-2.0
// Runs a program and stops it at its N-th call that changes something, or lists those calls.
//
//   stop_at --log FILE [--at N --fault FAULT] [--unsynced TEXT] -- PROGRAM ARGUMENT...
//
// A call changes something unless it is known not to: changes() lets through what only reads or
// concerns the process alone, and of D-Bus messages those that ask. Everything else is counted, so
// a call that nobody thought of is a point too. Processes that the program starts are not looked
// at.
//
// FILE gets a line for each: its number, the call, what it is about; and "hit" before the fault.
// FAULT, before call N (which then never happens, but for "reply"):
//   kill     SIGKILL
//   hold     "held" on stdout, wait for a line on stdin, SIGKILL
//   enospc, eio   the call fails, once
//   full     this call and every later one that needs disk space fails with ENOSPC
//   bus      the bus connection is shut down; the next connection works
//   reply    the call goes out, then the connection is lost
//   nobus    as bus, and no connection can be made any more
// --unsynced: an fsync of what has TEXT in its path does nothing and says that it has worked: a
// planted bug.
// Exit status: the program's, 128 + its signal, or 120 where it could not be run.
#include <fcntl.h>
#include <sched.h>
#include <sys/mman.h>
#include <sys/ptrace.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/user.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <csignal>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>

#include "dbus_member.h"
#include "syscall_kind.h"

namespace {

using torture::SyscallKind;

struct Options {
  std::string log, fault, unsynced;
  long at = 0;
  char** argv = nullptr;
};

// What one call is about, for the log; `changes` as above.
struct Call {
  bool changes = false;
  bool bus = false;    // a message on the bus
  bool grows = false;  // needs space on a disk
  std::string about;
};

class Tracee {
 public:
  explicit Tracee(pid_t pid) : pid_(pid) {}

  std::string bytes(std::uint64_t address, std::size_t size) const {
    std::string text(size, '\0');
    const iovec here{text.data(), size};
    // NOLINTNEXTLINE(performance-no-int-to-ptr): an address of another process
    const iovec there{reinterpret_cast<void*>(address), size};
    const ssize_t got = ::process_vm_readv(pid_, &here, 1, &there, 1, 0);
    text.resize(got > 0 ? static_cast<std::size_t>(got) : 0);
    return text;
  }

  // Up to the end of its page at a time: the text may end just before an unmapped one.
  std::string text(std::uint64_t address) const {
    std::string all;
    while (all.size() < 4096) {
      const std::string part = bytes(address, 4096 - address % 4096);
      const auto end = part.find('\0');
      all += part.substr(0, end);
      if (end != std::string::npos || part.empty()) break;
      address += part.size();
    }
    return all;
  }

  std::string descriptor(std::uint64_t fd) const {
    std::array<char, 4096> target{};
    const std::string link = "/proc/" + std::to_string(pid_) + "/fd/" + std::to_string(int(fd));
    const ssize_t size = ::readlink(link.c_str(), target.data(), target.size());
    return size > 0 ? std::string(target.data(), std::size_t(size)) : std::string();
  }

  // The first bytes of what `count` buffers hold.
  std::string buffers(std::uint64_t address, std::uint64_t count) const {
    std::string all;
    for (std::uint64_t i = 0; i < std::min<std::uint64_t>(count, 8) && all.size() < 4096; ++i) {
      const std::string raw = bytes(address + i * sizeof(iovec), sizeof(iovec));
      if (raw.size() != sizeof(iovec)) break;
      iovec buffer{};
      std::memcpy(&buffer, raw.data(), sizeof buffer);
      all += bytes(reinterpret_cast<std::uint64_t>(buffer.iov_base),
                   std::min<std::size_t>(buffer.iov_len, 4096));
    }
    return all;
  }

  std::string message(std::uint64_t header) const {
    const std::string raw = bytes(header, sizeof(msghdr));
    if (raw.size() != sizeof(msghdr)) return {};
    msghdr message{};
    std::memcpy(&message, raw.data(), sizeof message);
    return buffers(reinterpret_cast<std::uint64_t>(message.msg_iov), message.msg_iovlen);
  }

 private:
  pid_t pid_;
};

std::string payload(const Tracee& tracee, const user_regs_struct& regs) {
  switch (regs.orig_rax) {
    case SYS_sendmsg:
      return tracee.message(regs.rsi);
    case SYS_writev:
      return tracee.buffers(regs.rsi, regs.rdx);
    default:
      return tracee.bytes(regs.rsi, std::min<std::uint64_t>(regs.rdx, 4096));
  }
}

// Bytes that leave through a descriptor: to a file, to the bus, to a web server.
Call look_at_output(const Tracee& tracee, const user_regs_struct& regs) {
  Call call;
  const std::string target = tracee.descriptor(regs.rdi);
  if (target.rfind("socket:", 0) == 0) {
    const std::string sent = payload(tracee, regs);
    const std::string member = torture::dbus_member(sent);
    call.bus = !member.empty() && !torture::only_asks(member);
    const bool posts = sent.rfind("POST ", 0) == 0;
    call.changes = call.bus || posts;
    call.about = posts ? sent.substr(0, sent.find('\r')) : member;
    return call;
  }
  const bool file = !target.empty() && target[0] == '/' && target.rfind("/dev/", 0) != 0;
  call.changes = call.grows = file && regs.rdi > 2;
  call.about = target;
  return call;
}

std::uint64_t spawn_flags(const Tracee& tracee, const user_regs_struct& regs) {
  if (regs.orig_rax == SYS_clone) return regs.rdi;
  if (regs.orig_rax != SYS_clone3) return 0;
  std::uint64_t flags = 0;  // the first member of struct clone_args
  const std::string raw = tracee.bytes(regs.rdi, sizeof flags);
  if (raw.size() == sizeof flags) std::memcpy(&flags, raw.data(), sizeof flags);
  return flags;
}

Call look_at(const Tracee& tracee, const user_regs_struct& regs) {
  Call call;
  switch (torture::kind_of(regs.orig_rax)) {
    case SyscallKind::harmless:
      return call;
    case SyscallKind::output:
      return look_at_output(tracee, regs);
    case SyscallKind::open: {
      const bool at = regs.orig_rax == SYS_openat;
      const std::uint64_t flags = at ? regs.rdx : regs.orig_rax == SYS_creat ? O_CREAT : regs.rsi;
      call.changes = (flags & (O_CREAT | O_TRUNC)) != 0 || (flags & O_TMPFILE) == O_TMPFILE;
      if (call.changes) call.about = tracee.text(at ? regs.rsi : regs.rdi);
      if (call.about.rfind("/dev/", 0) == 0) return {};
      call.grows = true;
      break;
    }
    case SyscallKind::by_descriptor:
      call.changes = true;
      call.about = tracee.descriptor(regs.rdi);
      call.grows = regs.orig_rax == SYS_fsync || regs.orig_rax == SYS_fallocate;
      break;
    case SyscallKind::one_path:
      call.changes = true;
      call.about = tracee.text(regs.rdi);
      call.grows = regs.orig_rax == SYS_mkdir;
      break;
    case SyscallKind::one_path_at:
      call.changes = true;
      call.about = tracee.text(regs.rsi);
      call.grows = regs.orig_rax == SYS_mkdirat;
      break;
    case SyscallKind::two_paths:
      call.changes = call.grows = true;
      call.about = tracee.text(regs.rdi) + " " + tracee.text(regs.rsi);
      break;
    case SyscallKind::two_paths_at:
      call.changes = call.grows = true;
      call.about = tracee.text(regs.rsi) + " " + tracee.text(regs.r10);
      break;
    case SyscallKind::spawn:
      call.changes = (spawn_flags(tracee, regs) & CLONE_THREAD) == 0;
      call.about = "process";
      break;
    case SyscallKind::map:
      call.changes = (regs.rdx & PROT_WRITE) != 0 && (regs.r10 & MAP_TYPE) != MAP_PRIVATE &&
                     (regs.r10 & MAP_ANONYMOUS) == 0;
      if (call.changes) call.about = tracee.descriptor(regs.r8);
      break;
    case SyscallKind::unknown:
      call.changes = true;
      call.about = "?";
  }
  if (call.about.rfind("/run/", 0) == 0 || call.about.rfind("/proc/", 0) == 0) call.grows = false;
  return call;
}

class Stopper {
 public:
  Stopper(Options options, pid_t pid) : options_(std::move(options)), pid_(pid), tracee_(pid) {
    log_ = std::fopen(options_.log.c_str(), "we");
  }

  int run() {
    if (log_ == nullptr) return 120;
    bool entering = true;
    int signal = 0, status = 0;
    while (true) {
      if (::ptrace(PTRACE_SYSCALL, pid_, nullptr, signal) != 0 && errno != ESRCH) return 120;
      if (::waitpid(pid_, &status, 0) != pid_) return 120;
      if (WIFEXITED(status)) return WEXITSTATUS(status);
      if (WIFSIGNALED(status)) return 128 + WTERMSIG(status);
      signal = 0;
      const int stop = WSTOPSIG(status);
      if (stop != (SIGTRAP | 0x80)) {
        if (stop != SIGTRAP) signal = stop;
        continue;
      }
      if (entering)
        enter();
      else
        leave();
      entering = !entering;
    }
  }

 private:
  void enter() {
    ::ptrace(PTRACE_GETREGS, pid_, nullptr, &regs_);
    const Call call = look_at(tracee_, regs_);
    if (call.changes) {
      ++count_;
      std::fprintf(log_, "%ld %s %s\n", count_, torture::name_of(regs_.orig_rax).c_str(),
                   call.about.c_str());
      std::fflush(log_);
      if (count_ == options_.at) return hit();
      if (full_ && call.grows) return answer(-ENOSPC);
      if (regs_.orig_rax == SYS_fsync && !options_.unsynced.empty() &&
          call.about.find(options_.unsynced) != std::string::npos)
        return answer(0);
    }
    if (!lost_.empty() && on_lost_connection()) return answer(-ECONNRESET);
    if (no_bus_ && regs_.orig_rax == SYS_connect && tracee_.bytes(regs_.rsi, 1) == "\1")
      return answer(-ECONNREFUSED);
  }

  bool on_lost_connection() const {
    switch (regs_.orig_rax) {
      case SYS_sendmsg:
      case SYS_recvmsg:
      case SYS_sendto:
      case SYS_recvfrom:
      case SYS_read:
      case SYS_write:
      case SYS_writev:
        return tracee_.descriptor(regs_.rdi) == lost_;
      default:
        return false;
    }
  }

  void hit() {
    const std::string& fault = options_.fault;
    std::fprintf(log_, "hit %s\n", fault.c_str());
    std::fflush(log_);
    if (fault == "hold") {
      std::puts("held");
      std::fflush(stdout);
      while (true) {
        const int c = std::getchar();
        if (c == '\n' || c == EOF) break;
      }
    }
    if (fault == "kill" || fault == "hold") {
      change_to(-1);
      ::kill(pid_, SIGKILL);
      return;
    }
    full_ = fault == "full";
    no_bus_ = fault == "nobus";
    if (fault == "enospc" || fault == "full") return answer(-ENOSPC);
    if (fault == "eio") return answer(-EIO);
    lost_ = tracee_.descriptor(regs_.rdi);
    if (fault != "reply") answer(-ECONNRESET);
  }

  // The call is not made; the program sees `result`.
  void answer(long result) {
    change_to(-1);
    replaced_ = true;
    result_ = result;
  }

  void change_to(long number) {
    user_regs_struct changed = regs_;
    changed.orig_rax = static_cast<std::uint64_t>(number);
    ::ptrace(PTRACE_SETREGS, pid_, nullptr, &changed);
  }

  void leave() {
    if (!replaced_) return;
    replaced_ = false;
    user_regs_struct regs{};
    ::ptrace(PTRACE_GETREGS, pid_, nullptr, &regs);
    regs.rax = static_cast<std::uint64_t>(result_);
    ::ptrace(PTRACE_SETREGS, pid_, nullptr, &regs);
  }

  Options options_;
  pid_t pid_;
  Tracee tracee_;
  std::FILE* log_ = nullptr;
  user_regs_struct regs_{};
  long count_ = 0;
  bool full_ = false, no_bus_ = false, replaced_ = false;
  long result_ = 0;
  std::string lost_;  // "socket:[inode]" of the connection that is gone
};

bool parse(int argc, char** argv, Options& options) {
  for (int i = 1; i < argc; ++i) {
    const std::string word = argv[i];
    if (word == "--") {
      options.argv = argv + i + 1;
      return i + 1 < argc && !options.log.empty() && (options.at > 0) == !options.fault.empty();
    }
    if (i + 1 == argc) return false;
    const char* value = argv[++i];
    if (word == "--log")
      options.log = value;
    else if (word == "--at")
      options.at = std::strtol(value, nullptr, 10);
    else if (word == "--fault")
      options.fault = value;
    else if (word == "--unsynced")
      options.unsynced = value;
    else
      return false;
  }
  return false;
}

}  // namespace

int main(int argc, char** argv) {
  Options options;
  if (!parse(argc, argv, options)) {
    std::fputs(
        "usage: stop_at --log FILE [--at N --fault FAULT] [--unsynced TEXT] -- PROGRAM "
        "ARGUMENT...\n",
        stderr);
    return 120;
  }
  const pid_t child = ::fork();
  if (child == 0) {
    ::ptrace(PTRACE_TRACEME, 0, nullptr, nullptr);
    ::raise(SIGSTOP);
    ::execvp(options.argv[0], options.argv);
    std::perror(options.argv[0]);
    ::_exit(120);
  }
  int status = 0;
  ::waitpid(child, &status, 0);
  ::ptrace(PTRACE_SETOPTIONS, child, nullptr, PTRACE_O_TRACESYSGOOD | PTRACE_O_EXITKILL);
  return Stopper(std::move(options), child).run();
}
