// sandbox::restrict_calls(): the filter of allowed_calls.h, and of the calls below, which are allowed with
// certain arguments only.
#include <fcntl.h>
#include <linux/netlink.h>
#include <linux/prctl.h>
#include <linux/sockios.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sched.h>
#include <seccomp.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <memory>
#include <system_error>
#include <vector>

#include "protocol/transport/socket/descriptors.h"
#include "server/worker/sandbox/allowed_calls.h"
#include "server/worker/sandbox/sandbox.h"

#ifndef PR_SET_VMA
#define PR_SET_VMA 0x53564d41
#endif

namespace gpupool::worker::sandbox {
namespace {

// A call that is allowed if all its conditions hold. Several rows of the same call are alternatives.
struct CheckedCall {
  const char* name;
  std::vector<scmp_arg_cmp> only;
  const char* reason;
};

// The kernel uses the low 32 bits of an int, so the upper bits, which an attacker chooses freely, must not
// matter.
scmp_arg_cmp is(unsigned argument, uint64_t value) {
  return SCMP_CMP(argument, SCMP_CMP_MASKED_EQ, 0xffffffffu, value & 0xffffffffu);
}
scmp_arg_cmp has_none_of(unsigned argument, uint64_t bits) {
  return SCMP_CMP(argument, SCMP_CMP_MASKED_EQ, bits, 0);
}
scmp_arg_cmp has_all_of(unsigned argument, uint64_t bits) {
  return SCMP_CMP(argument, SCMP_CMP_MASKED_EQ, bits, bits);
}
scmp_arg_cmp is_null(unsigned argument) {
  return SCMP_CMP(argument, SCMP_CMP_EQ, 0);
}
scmp_arg_cmp is_socket_type(unsigned argument, int type) {
  return SCMP_CMP(argument, SCMP_CMP_MASKED_EQ,
                  0xffffffffu & ~static_cast<unsigned>(SOCK_CLOEXEC | SOCK_NONBLOCK),
                  static_cast<scmp_datum_t>(type));
}

// Excludes commands that make the kernel send signals for a descriptor (F_SETOWN, F_SETSIG, O_ASYNC,
// F_NOTIFY, F_SETLEASE), because these can go to any process of the same user.
std::vector<CheckedCall> descriptor_calls() {
  return {
      {"fcntl", {is(1, F_DUPFD)}, "descriptors"},
      {"fcntl", {is(1, F_DUPFD_CLOEXEC)}, "descriptors"},
      {"fcntl", {is(1, F_GETFD)}, "descriptors"},
      {"fcntl", {is(1, F_SETFD)}, "FD_CLOEXEC"},
      {"fcntl", {is(1, F_GETFL)}, "O_NONBLOCK"},
      {"fcntl", {is(1, F_SETFL), has_none_of(2, O_ASYNC)}, "O_NONBLOCK"},
      {"fcntl", {is(1, F_GETLK)}, "record locks of softgpu's shared state and of cached code"},
      {"fcntl", {is(1, F_SETLK)}, "as F_GETLK"},
      {"fcntl", {is(1, F_SETLKW)}, "as F_GETLK"},
      {"fcntl", {is(1, F_ADD_SEALS)}, "images and shared memory"},
      {"fcntl", {is(1, F_GET_SEALS)}, "images and shared memory"},
      {"fcntl", {is(1, F_SETPIPE_SZ)}, "output of kernels"},
      {"fcntl", {is(1, F_GETPIPE_SZ)}, "driver"},
      // The only allowed ioctls of type 'T' (poold's log may be a terminal, which must not receive input;
      // FIOASYNC) and of type 0x89 (FIOSETOWN, SIOCSPGRP).
      {"ioctl", {is(1, TCGETS)}, "isatty"},
      {"ioctl", {is(1, FIONREAD)}, "driver"},
      {"ioctl", {is(1, FIONBIO)}, "driver"},
      {"ioctl", {is(1, FIOCLEX)}, "driver"},
      {"ioctl", {is(1, SIOCGIFNAME)}, "if_indextoname of rdma-core; only reads"},
      {"ioctl", {is(1, SIOCGIFINDEX)}, "if_nametoindex of rdma-core; only reads"},
  };
}

// Allows ioctls of all other types, which drivers use (NVIDIA's 'F' and 0, RDMA's 0x1b, dma-buf's 'b'). A
// filter can only compare for equality under a mask. "Neither of two types" is therefore expressed by bits:
// either one bit in which both are equal and the type differs, or one bit in which the type differs from the
// first and another in which it differs from the second.
std::vector<CheckedCall> device_calls() {
  constexpr unsigned kTerminal = 'T', kSocket = 0x89;
  const auto bits = [](unsigned mask, unsigned value) {
    return SCMP_CMP(1, SCMP_CMP_MASKED_EQ, scmp_datum_t{mask} << 8, scmp_datum_t{value & mask} << 8);
  };
  std::vector<CheckedCall> calls;
  for (unsigned first = 1; first < 0x100; first <<= 1) {
    if ((kTerminal & first) == (kSocket & first)) {
      calls.push_back({"ioctl", {bits(first, ~kTerminal)}, "devices"});
      continue;
    }
    for (unsigned second = 1; second < 0x100; second <<= 1) {
      if (second == first || (kTerminal & second) == (kSocket & second)) continue;
      calls.push_back(
          {"ioctl", {bits(first | second, (~kTerminal & first) | (~kSocket & second))}, "devices"});
    }
  }
  return calls;
}

// Only options that cannot block another process: SO_LINGER would block poold when it closes its copy of the
// descriptor.
std::vector<CheckedCall> socket_calls() {
  std::vector<CheckedCall> calls = {
      // No datagram sockets: they reach any other socket by sendto or connect.
      {"socketpair", {is(0, AF_UNIX), is_socket_type(1, SOCK_STREAM)}, "shm connections"},
      {"socketpair", {is(0, AF_UNIX), is_socket_type(1, SOCK_SEQPACKET)}, "driver"},
      {"sendto", {is_null(4)}, "send()"},
      // Identified by the length of the address, which excludes ports: Internet sockets and, except for a few
      // names, Unix sockets keep their address.
      {"bind",
       {is(2, sizeof(sockaddr_nl))},
       "netlink sockets of rdma-core (nl_connect) and glibc (getaddrinfo)"},
      {"socket", {is(0, AF_NETLINK), is(2, NETLINK_ROUTE)}, "rdma-core; glibc's getaddrinfo"},
      {"socket", {is(0, AF_NETLINK), is(2, NETLINK_RDMA)}, "rdma-core"},
      {"setsockopt", {is(1, SOL_NETLINK)}, "rdma-core (libnl)"},
      {"setsockopt", {is(1, SOL_SOCKET), is(2, SO_KEEPALIVE)}, "TCP connections"},
      {"setsockopt", {is(1, SOL_SOCKET), is(2, SO_SNDBUF)}, "connections; rdma-core"},
      {"setsockopt", {is(1, SOL_SOCKET), is(2, SO_RCVBUF)}, "connections; rdma-core"},
      {"setsockopt",
       {is(1, SOL_SOCKET), is(2, transport::kPassRights)},
       "its client's shm connection, by which memory is shared"},
      {"setsockopt", {is(1, SOL_SOCKET), is(2, SO_SNDTIMEO)}, "driver"},
      {"setsockopt", {is(1, SOL_SOCKET), is(2, SO_RCVTIMEO)}, "driver"},
      {"setsockopt", {is(1, IPPROTO_TCP), is(2, TCP_NODELAY)}, "TCP connections"},
      {"setsockopt", {is(1, IPPROTO_TCP), is(2, TCP_KEEPIDLE)}, "TCP connections"},
      {"setsockopt", {is(1, IPPROTO_TCP), is(2, TCP_KEEPINTVL)}, "TCP connections"},
      {"setsockopt", {is(1, IPPROTO_TCP), is(2, TCP_KEEPCNT)}, "TCP connections"},
  };
  return calls;
}

// Threads and signals of this process only, and no new process.
std::vector<CheckedCall> process_calls() {
  const auto self = static_cast<uint64_t>(::getpid());
  return {
      {"clone", {has_all_of(0, CLONE_THREAD)}, "threads"},
      {"kill", {is(0, self)}, "raise()"},
      {"tgkill", {is(0, self)}, "raise(), pthread_kill()"},
      {"prlimit64", {is(0, 0)}, "its own limits"},
      {"prlimit64", {is(0, self)}, "its own limits"},
      // For the calling thread only. pthread_setaffinity_np fails, because it passes a thread id, and a
      // filter cannot tell whose it is.
      {"sched_setaffinity", {is(0, 0)}, "driver"},
      {"move_pages", {is(0, 0)}, "driver"},
      {"move_pages", {is(0, self)}, "driver"},
      {"prctl", {is(0, PR_SET_NAME)}, "names of threads"},
      {"prctl", {is(0, PR_GET_NAME)}, "names of threads"},
      {"prctl", {is(0, PR_SET_VMA)}, "glibc names its memory"},
      {"prctl", {is(0, PR_SET_TIMERSLACK)}, "driver"},
      {"prctl", {is(0, PR_GET_TIMERSLACK)}, "driver"},
      {"prctl", {is(0, PR_SET_THP_DISABLE)}, "driver"},
      {"prctl", {is(0, PR_GET_THP_DISABLE)}, "driver"},
      {"prctl", {is(0, PR_GET_DUMPABLE)}, "driver; only reads"},
      {"prctl", {is(0, PR_GET_NO_NEW_PRIVS)}, "driver; only reads"},
      {"prctl", {is(0, PR_GET_SECCOMP)}, "driver; only reads"},
      {"prctl", {is(0, PR_CAPBSET_READ)}, "driver; only reads"},
  };
}

class Filter {
 public:
  explicit Filter(uint32_t refusal) : context_(::seccomp_init(refusal), ::seccomp_release) {}

  // Keeps the first error for load().
  void add(uint32_t action, const char* name, const std::vector<scmp_arg_cmp>& only = {}) {
    const int number = ::seccomp_syscall_resolve_name(name);
    if (!context_ || number == __NR_SCMP_ERROR) return;  // older versions of libseccomp lack the newest calls
    const int error = ::seccomp_rule_add_array(context_.get(), action, number,
                                               static_cast<unsigned>(only.size()), only.data());
    if (error != 0 && error != -EDOM && error_ == 0) error_ = error;
  }
  void allow(const std::vector<CheckedCall>& calls) {
    for (const CheckedCall& call : calls) add(SCMP_ACT_ALLOW, call.name, call.only);
  }
  Result<void> load() {
    if (!context_) return Error{ErrorCode::unavailable, "cannot create a system-call filter"};
    // Applies to all threads; as a binary tree instead of a list, if libseccomp supports that.
    if (error_ == 0) error_ = ::seccomp_attr_set(context_.get(), SCMP_FLTATR_CTL_TSYNC, 1);
    (void)::seccomp_attr_set(context_.get(), SCMP_FLTATR_CTL_OPTIMIZE, 2);
    if (error_ == 0) error_ = ::seccomp_load(context_.get());
    if (error_ == 0) return {};
    return Error{ErrorCode::unavailable,
                 "cannot filter a worker's system calls: " + std::generic_category().message(-error_)};
  }

 private:
  std::unique_ptr<void, void (*)(scmp_filter_ctx)> context_;
  int error_ = 0;
};

}  // namespace

Result<void> restrict_calls(Calls others) {
  Filter filter(others == Calls::log ? SCMP_ACT_LOG : SCMP_ACT_ERRNO(EPERM));
  for (const AllowedCall& call : kAllowedCalls) filter.add(SCMP_ACT_ALLOW, call.name);
  filter.allow(descriptor_calls());
  filter.allow(device_calls());
  filter.allow(socket_calls());
  filter.allow(process_calls());
  // The flags of clone3 are in memory, which a filter cannot read; after ENOSYS libc falls back to clone.
  filter.add(SCMP_ACT_ERRNO(ENOSYS), "clone3");
  return filter.load();
}

}  // namespace gpupool::worker::sandbox
