// sandbox::restrict_calls(): the list of system calls that a worker may make once it has a client.
#include <linux/netlink.h>
#include <sched.h>
#include <seccomp.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <memory>
#include <system_error>

#include "server/worker/sandbox.h"

namespace gpupool::worker::sandbox {
namespace {

// By what they are needed for. Names that this machine's architecture does not have are left out by libseccomp.
constexpr const char* kAllowed[] = {
    // memory
    "brk", "mmap", "mmap2", "munmap", "mprotect", "mremap", "madvise", "mincore", "msync", "mlock", "mlock2", "mlockall", "munlock",
    "munlockall", "memfd_create", "membarrier", "mbind", "set_mempolicy", "get_mempolicy", "move_pages", "pkey_alloc", "pkey_free",
    "pkey_mprotect", "shmget", "shmat", "shmdt", "shmctl",
    // threads
    "futex", "futex_waitv", "get_robust_list", "set_robust_list", "rseq", "set_tid_address", "arch_prctl", "prctl", "gettid", "exit", "exit_group",
    "sched_yield", "sched_getaffinity", "sched_setaffinity", "sched_getparam", "sched_getscheduler", "sched_get_priority_max",
    "sched_get_priority_min", "sched_rr_get_interval", "getcpu", "getpriority",
    // signals
    "rt_sigaction", "rt_sigprocmask", "rt_sigreturn", "rt_sigtimedwait", "rt_sigsuspend", "rt_sigpending", "sigaltstack", "restart_syscall", "pause", "signalfd4",
    // time
    "clock_gettime", "clock_getres", "clock_nanosleep", "gettimeofday", "nanosleep", "time", "times", "timer_create", "timer_settime",
    "timer_gettime", "timer_getoverrun", "timer_delete", "timerfd_create", "timerfd_settime", "timerfd_gettime", "alarm", "setitimer", "getitimer",
    // files that restrict_files() leaves, pipes, events
    "open", "openat", "openat2", "close", "close_range", "read", "readv", "pread64", "preadv", "preadv2", "write", "writev", "pwrite64", "pwritev", "pwritev2",
    "lseek", "stat", "fstat", "lstat", "newfstatat", "statx", "statfs", "fstatfs", "access", "faccessat", "faccessat2", "readlink", "readlinkat", "getdents",
    "getdents64", "getcwd", "umask", "dup", "dup2", "dup3", "fcntl", "flock", "ftruncate", "fallocate", "fsync", "fdatasync", "unlink", "unlinkat",
    "mkdir", "mkdirat", "rmdir",
    "fadvise64", "pipe", "pipe2", "eventfd", "eventfd2", "poll", "ppoll", "select", "pselect6", "epoll_create", "epoll_create1",
    "epoll_ctl", "epoll_wait", "epoll_pwait", "epoll_pwait2", "inotify_init1", "inotify_add_watch", "inotify_rm_watch", "splice", "tee", "vmsplice",
    // sockets
    "socketpair", "bind", "connect", "listen", "accept", "accept4", "getsockname", "getpeername", "getsockopt", "setsockopt", "shutdown",
    "sendto", "sendmsg", "sendmmsg", "recvfrom", "recvmsg", "recvmmsg",
    // what the process and the machine are
    "getpid", "getppid", "getuid", "geteuid", "getgid", "getegid", "getresuid", "getresgid", "getgroups", "getpgrp", "getpgid", "getsid", "getrlimit", "getrusage",
    "capget", "uname", "sysinfo", "getrandom",
};

class Filter {
 public:
  Filter() : context_(::seccomp_init(SCMP_ACT_ERRNO(EPERM)), ::seccomp_release) {}

  // Failures are kept; the first one is the result of load().
  template <class... Arguments>
  void allow(const char* name, Arguments... arguments) {
    add(SCMP_ACT_ALLOW, name, arguments...);
  }
  template <class... Arguments>
  void add(uint32_t action, const char* name, Arguments... arguments) {
    const int number = ::seccomp_syscall_resolve_name(name);
    if (!context_ || number == __NR_SCMP_ERROR) return;  // older libseccomps do not know the newest calls
    const int error = ::seccomp_rule_add(context_.get(), action, number, sizeof...(arguments), arguments...);
    if (error != 0 && error != -EDOM && error_ == 0) error_ = error;
  }
  Result<void> load() {
    if (!context_) return Error{ErrorCode::unavailable, "cannot make a system-call filter"};
    // All threads; and a tree in place of a list, where libseccomp can.
    if (error_ == 0) error_ = ::seccomp_attr_set(context_.get(), SCMP_FLTATR_CTL_TSYNC, 1);
    (void)::seccomp_attr_set(context_.get(), SCMP_FLTATR_CTL_OPTIMIZE, 2);
    if (error_ == 0) error_ = ::seccomp_load(context_.get());
    if (error_ == 0) return {};
    return Error{ErrorCode::unavailable, "cannot filter a worker's system calls: " + std::generic_category().message(-error_)};
  }

 private:
  std::unique_ptr<void, void (*)(scmp_filter_ctx)> context_;
  int error_ = 0;
};

}  // namespace

Result<void> restrict_calls(bool outward) {
  Filter filter;
  for (const char* const name : kAllowed) filter.allow(name);
  // Threads, no processes. clone3 keeps its flags in memory, where a filter cannot look: libc then takes clone.
  filter.allow("clone", SCMP_A0(SCMP_CMP_MASKED_EQ, CLONE_THREAD, CLONE_THREAD));
  filter.add(SCMP_ACT_ERRNO(ENOSYS), "clone3");
  // Of this process only.
  const auto self = static_cast<scmp_datum_t>(::getpid());
  filter.allow("kill", SCMP_A0(SCMP_CMP_EQ, self));
  filter.allow("tgkill", SCMP_A0(SCMP_CMP_EQ, self));
  for (const scmp_datum_t pid : {scmp_datum_t{0}, self}) filter.allow("prlimit64", SCMP_A0(SCMP_CMP_EQ, pid));
  // Drivers are called by ioctl. A terminal (poold's log may be one) must not be typed into: of type 'T' only what is harmless,
  // and of all types whose number differs from it in at least one bit, everything.
  for (unsigned bit = 0; bit < 8; ++bit) {
    const scmp_datum_t mask = scmp_datum_t{1} << (8 + bit);
    filter.allow("ioctl", SCMP_A1(SCMP_CMP_MASKED_EQ, mask, ~(scmp_datum_t{'T'} << 8) & mask));
  }
  for (const scmp_datum_t request : {TCGETS, FIONREAD, FIONBIO, FIOCLEX}) {
    filter.allow("ioctl", SCMP_A1(SCMP_CMP_MASKED_EQ, 0xffffffff, request));
  }
  for (const scmp_datum_t protocol : {NETLINK_ROUTE, NETLINK_RDMA}) {
    filter.allow("socket", SCMP_A0(SCMP_CMP_EQ, AF_NETLINK), SCMP_A2(SCMP_CMP_EQ, protocol));
  }
  for (const int domain : {AF_INET, AF_INET6}) {
    if (outward) filter.allow("socket", SCMP_A0(SCMP_CMP_EQ, static_cast<scmp_datum_t>(domain)));
  }
  return filter.load();
}

}  // namespace gpupool::worker::sandbox
