// SPDX-License-Identifier: Apache-2.0
#include "syscall_kind.h"

#include <sys/syscall.h>

#include <algorithm>
#include <array>

namespace torture {
namespace {

struct Named {
  long number;
  SyscallKind kind;
  const char* name;
};

#define KDTREE_CALL(kind, name) \
  Named { SYS_##name, SyscallKind::kind, #name }
constexpr std::array kNamed = {
    KDTREE_CALL(open, open),
    KDTREE_CALL(open, openat),
    KDTREE_CALL(open, creat),
    KDTREE_CALL(output, write),
    KDTREE_CALL(output, pwrite64),
    KDTREE_CALL(output, writev),
    KDTREE_CALL(output, sendmsg),
    KDTREE_CALL(output, sendto),
    KDTREE_CALL(spawn, fork),
    KDTREE_CALL(spawn, vfork),
    KDTREE_CALL(spawn, clone),
    KDTREE_CALL(spawn, clone3),
    KDTREE_CALL(map, mmap),
    KDTREE_CALL(unknown, kill),
    KDTREE_CALL(unknown, tgkill),
    KDTREE_CALL(by_descriptor, fsync),
    KDTREE_CALL(by_descriptor, fdatasync),
    KDTREE_CALL(by_descriptor, syncfs),
    KDTREE_CALL(by_descriptor, ftruncate),
    KDTREE_CALL(by_descriptor, fallocate),
    KDTREE_CALL(by_descriptor, fchmod),
    KDTREE_CALL(by_descriptor, fchown),
    KDTREE_CALL(by_descriptor, fsetxattr),
    KDTREE_CALL(by_descriptor, fremovexattr),
    KDTREE_CALL(by_descriptor, sendfile),
    KDTREE_CALL(by_descriptor, copy_file_range),
    KDTREE_CALL(one_path, mkdir),
    KDTREE_CALL(one_path, rmdir),
    KDTREE_CALL(one_path, unlink),
    KDTREE_CALL(one_path, chmod),
    KDTREE_CALL(one_path, chown),
    KDTREE_CALL(one_path, lchown),
    KDTREE_CALL(one_path, truncate),
    KDTREE_CALL(one_path, setxattr),
    KDTREE_CALL(one_path, lsetxattr),
    KDTREE_CALL(one_path_at, mkdirat),
    KDTREE_CALL(one_path_at, unlinkat),
    KDTREE_CALL(one_path_at, fchmodat),
    KDTREE_CALL(one_path_at, fchownat),
    KDTREE_CALL(one_path_at, utimensat),
    KDTREE_CALL(two_paths, rename),
    KDTREE_CALL(two_paths, link),
    KDTREE_CALL(two_paths, symlink),
    KDTREE_CALL(two_paths_at, renameat),
    KDTREE_CALL(two_paths_at, renameat2),
    KDTREE_CALL(two_paths_at, linkat),
    KDTREE_CALL(two_paths_at, symlinkat),
};
#undef KDTREE_CALL

// Reads; memory, time, signals, limits and descriptors of the process; its children.
constexpr std::array kHarmless = {
    SYS_read,
    SYS_pread64,
    SYS_readv,
    SYS_preadv,
    SYS_close,
    SYS_close_range,
    SYS_lseek,
    SYS_stat,
    SYS_fstat,
    SYS_lstat,
    SYS_newfstatat,
    SYS_statx,
    SYS_statfs,
    SYS_fstatfs,
    SYS_access,
    SYS_faccessat,
    SYS_faccessat2,
    SYS_readlink,
    SYS_readlinkat,
    SYS_getdents64,
    SYS_getxattr,
    SYS_lgetxattr,
    SYS_fgetxattr,
    SYS_listxattr,
    SYS_llistxattr,
    SYS_flistxattr,
    SYS_getcwd,
    SYS_chdir,
    SYS_fchdir,
    SYS_umask,
    SYS_fadvise64,
    SYS_poll,
    SYS_ppoll,
    SYS_select,
    SYS_pselect6,
    SYS_epoll_create1,
    SYS_epoll_ctl,
    SYS_epoll_wait,
    SYS_epoll_pwait,
    SYS_eventfd2,
    SYS_timerfd_create,
    SYS_timerfd_settime,
    SYS_signalfd4,
    SYS_memfd_create,
    SYS_pipe,
    SYS_pipe2,
    SYS_dup,
    SYS_dup2,
    SYS_dup3,
    SYS_fcntl,
    SYS_flock,
    SYS_ioctl,
    SYS_mprotect,
    SYS_munmap,
    SYS_mremap,
    SYS_madvise,
    SYS_brk,
    SYS_membarrier,
    SYS_rt_sigaction,
    SYS_rt_sigprocmask,
    SYS_rt_sigreturn,
    SYS_rt_sigtimedwait,
    SYS_sigaltstack,
    SYS_nanosleep,
    SYS_clock_nanosleep,
    SYS_clock_gettime,
    SYS_clock_getres,
    SYS_gettimeofday,
    SYS_time,
    SYS_restart_syscall,
    SYS_pause,
    SYS_sched_yield,
    SYS_sched_getaffinity,
    SYS_getcpu,
    SYS_getpid,
    SYS_getppid,
    SYS_gettid,
    SYS_getuid,
    SYS_geteuid,
    SYS_getgid,
    SYS_getegid,
    SYS_getgroups,
    SYS_getresuid,
    SYS_getresgid,
    SYS_getpgrp,
    SYS_getpgid,
    SYS_getsid,
    SYS_setpgid,
    SYS_setsid,
    SYS_getrlimit,
    SYS_setrlimit,
    SYS_prlimit64,
    SYS_getrusage,
    SYS_getpriority,
    SYS_uname,
    SYS_sysinfo,
    SYS_times,
    SYS_getrandom,
    SYS_prctl,
    SYS_arch_prctl,
    SYS_set_tid_address,
    SYS_set_robust_list,
    SYS_rseq,
    SYS_futex,
    SYS_socket,
    SYS_socketpair,
    SYS_connect,
    SYS_bind,
    SYS_recvfrom,
    SYS_recvmsg,
    SYS_shutdown,
    SYS_getsockname,
    SYS_getpeername,
    SYS_getsockopt,
    SYS_setsockopt,
    SYS_execve,
    SYS_wait4,
    SYS_waitid,
    SYS_pidfd_open,
    SYS_exit,
    SYS_exit_group,
    SYS_capget,
};

const Named* named(std::uint64_t number) {
  const auto found = std::find_if(kNamed.begin(), kNamed.end(), [&](const Named& each) {
    return static_cast<std::uint64_t>(each.number) == number;
  });
  return found == kNamed.end() ? nullptr : &*found;
}

}  // namespace

SyscallKind kind_of(std::uint64_t number) {
  if (std::find(kHarmless.begin(), kHarmless.end(), static_cast<long>(number)) != kHarmless.end())
    return SyscallKind::harmless;
  const Named* known = named(number);
  return known == nullptr ? SyscallKind::unknown : known->kind;
}

std::string name_of(std::uint64_t number) {
  const Named* known = named(number);
  return known == nullptr ? "syscall_" + std::to_string(number) : known->name;
}

}  // namespace torture
