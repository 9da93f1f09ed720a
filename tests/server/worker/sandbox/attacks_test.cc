// Tests attacks of a confined child process on another one or on the test itself. Each attack must fail and
// the victim must survive.
#include <fcntl.h>
#include <grp.h>
#include <linux/netlink.h>
#include <net/if.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sched.h>
#include <signal.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/ptrace.h>
#include <sys/resource.h>
#include <sys/shm.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/un.h>

#include <cstring>
#include <string>

#include "server/confinement/landlock.h"
#include "server/confinement/namespaces.h"
#include "server/worker/sandbox/sandbox.h"
#include "tests/server/worker/sandbox/confined_children.h"
#include "tests/support/skip.h"

using namespace gpupool;
using namespace gpupool::testing;
namespace sandbox = gpupool::worker::sandbox;

namespace {

// Checks that a process of the same user, which has only dropped privileges, cannot reach the victim's
// memory.
bool memory_is_hidden(pid_t victim) {
  const std::string folder = "/proc/" + std::to_string(victim);
  return refused(::open((folder + "/mem").c_str(), O_RDWR), EACCES) &&
         refused(::open((folder + "/environ").c_str(), O_RDONLY), EACCES) &&
         ::open((folder + "/fd/0").c_str(), O_RDONLY) < 0 &&
         refused(::ptrace(PTRACE_SEIZE, victim, nullptr, nullptr));
}

}  // namespace

TEST_CASE("a worker's memory is hidden from processes of its user, also without Landlock") {
  // Acts as an ordinary user's program: as user 65534 if started by root, and dumpable, so that nothing is
  // hidden yet.
  const auto ordinary = [] {
    const bool other =
        ::geteuid() != 0 || (::setgroups(0, nullptr) == 0 && ::setresgid(65534, 65534, 65534) == 0 &&
                             ::setresuid(65534, 65534, 65534) == 0);
    return other && ::prctl(PR_SET_DUMPABLE, 1) == 0;
  };
  const Victim victim([&] { return ordinary() && sandbox::drop_user("").ok(); });
  CHECK(in_child([&](Checks& check) {
          check(ordinary());
          check(memory_is_hidden(victim.pid()));
        }) == 0);
  CHECK(victim.lives());
}

TEST_CASE("workers with separate users cannot signal each other or read each other's files") {
  if (::geteuid() != 0) return gpupool::testing::report_skip("only root's workers become other users");
  constexpr const char* kFirst = "61001";
  constexpr const char* kSecond = "61002";
  const std::string shared = "/dev/shm/gpupool-attacks-test-" + std::to_string(::getpid());
  const Victim victim([&] {
    const bool confined = sandbox::drop_user(kFirst).ok();
    ::umask(077);
    return confined && ::open(shared.c_str(), O_RDWR | O_CREAT | O_EXCL, 0666) >= 0;
  });
  CHECK(in_child([&](Checks& check) {
          check(sandbox::drop_user(kSecond).ok());
          check(::getuid() == 61002 && ::getgid() == 61002);
          check(refused(::kill(victim.pid(), SIGKILL)));
          check(refused(::kill(victim.pid(), 0)));
          cpu_set_t all;
          check(::sched_getaffinity(0, sizeof all, &all) == 0);
          check(refused(::sched_setaffinity(victim.pid(), sizeof all, &all)));
          int ends[2];
          check(::pipe(ends) == 0);
          check(::fcntl(ends[0], F_SETSIG, SIGKILL) == 0 && ::fcntl(ends[0], F_SETOWN, victim.pid()) == 0 &&
                ::fcntl(ends[0], F_SETFL, O_ASYNC) == 0);
          check(::write(ends[1], "x", 1) == 1);  // the kernel does not signal another user's process
          check(memory_is_hidden(victim.pid()));
          check(refused(::open(shared.c_str(), O_RDONLY), EACCES));
          check(refused(::unlink(shared.c_str())));
        }) == 0);
  CHECK(victim.lives());
  CHECK(::unlink(shared.c_str()) == 0);
}

TEST_CASE("a session's user has no other process and no files of an earlier session") {
  if (::geteuid() != 0) return gpupool::testing::report_skip("only root's workers become other users");
  const std::string shared = "/dev/shm/gpupool-leftover-test-" + std::to_string(::getpid());
  {
    const Victim before([&] {
      return sandbox::drop_user("61003").ok() && ::open(shared.c_str(), O_RDWR | O_CREAT | O_EXCL, 0600) >= 0;
    });
    CHECK(in_child([&](Checks& check) {
            check(sandbox::drop_user("61003").ok());
            const auto taken = sandbox::claim_user(::open("/proc", O_RDONLY | O_DIRECTORY));
            check(!taken.ok() &&
                  taken.error().message.find(std::to_string(before.pid())) != std::string::npos);
          }) == 0);
    CHECK(::access(shared.c_str(), F_OK) == 0);
  }
  CHECK(in_child([&](Checks& check) {
          check(sandbox::drop_user("61003").ok());
          check(sandbox::claim_user(::open("/proc", O_RDONLY | O_DIRECTORY)).ok());
        }) == 0);
  CHECK((::access(shared.c_str(), F_OK) < 0 && errno == ENOENT));
}

TEST_CASE("a worker sees no processes, no shared memory and no network of the host") {
  if (::geteuid() != 0) return gpupool::testing::report_skip("only root makes namespaces");
  const Victim victim([] { return sandbox::drop_user("nobody").ok(); });
  const int memory = ::shmget(IPC_PRIVATE, 4096, IPC_CREAT | 0666);
  REQUIRE(memory >= 0);
  int ends[2];
  REQUIRE(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) == 0);
  const int host = ::socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  sockaddr_un name{};
  name.sun_family = AF_UNIX;
  socklen_t size = sizeof name;
  REQUIRE((::bind(host, reinterpret_cast<const sockaddr*>(&name), sizeof name.sun_family) == 0 &&
           ::getsockname(host, reinterpret_cast<sockaddr*>(&name), &size) == 0));
  const std::string other = "/proc/" + std::to_string(victim.pid()),
                    parent = "/proc/" + std::to_string(::getpid());
  const int status = in_child([&](Checks& check) {
    const sandbox::Namespaces made = sandbox::separate({.processes = true, .ipc = true, .network = true});
    if (!made.processes || !made.ipc || !made.network) ::_exit(77);
    check(sandbox::drop_user("nobody").ok());
    for (const std::string& folder : {other, parent, std::string("/proc/1")})
      check(refused(::access(folder.c_str(), F_OK), ENOENT));  // even `other`, which has the same user
    check(::access(("/proc/" + std::to_string(::getpid()) + "/maps").c_str(), R_OK) == 0 &&
          ::access("/proc/meminfo", R_OK) == 0);
    struct shmid_ds state {};
    check(refused(::shmctl(memory, IPC_STAT, &state), EINVAL));
    const int datagrams = ::socket(AF_UNIX, SOCK_DGRAM, 0);
    check(refused(::sendto(datagrams, "x", 1, 0, reinterpret_cast<const sockaddr*>(&name), size),
                  ECONNREFUSED));
    check(::write(ends[1], "x", 1) == 1);
    ifreq loopback{};
    std::strcpy(loopback.ifr_name, "lo");
    check(refused(::ioctl(::socket(AF_INET, SOCK_DGRAM, 0), SIOCGIFADDR, &loopback),
                  EADDRNOTAVAIL));  // not even loopback has an address
  });
  char byte = 0;
  const bool came = ::recv(ends[0], &byte, 1, MSG_DONTWAIT) == 1, nobody_came = ::recv(host, &byte, 1, 0) < 0;
  for (const int end : {ends[0], ends[1], host}) ::close(end);
  ::shmctl(memory, IPC_RMID, nullptr);
  if (status == 77) return gpupool::testing::report_skip("this process may not make namespaces");
  CHECK(status == 0);
  CHECK((came && nobody_came));
  CHECK(victim.lives());
}

TEST_CASE("continues without namespaces in an unprivileged process") {
  CHECK(in_child([](Checks& check) {
          if (::geteuid() == 0) check(sandbox::drop_user("nobody").ok());
          const sandbox::Namespaces made =
              sandbox::separate({.processes = true, .ipc = true, .network = true});
          check(!made.processes && !made.ipc && !made.network);
          check(::access("/proc/1", F_OK) == 0);
        }) == 0);
}

TEST_CASE(
    "Landlock keeps workers from TCP, abstract sockets and other processes' signals without the filter") {
  if (sandbox::landlock_version() < sandbox::kLandlockScopes)
    return gpupool::testing::report_skip("this kernel's Landlock has no scopes (Linux 6.12)");
  const Victim victim([] { return sandbox::drop_user("nobody").ok(); });
  const int datagrams = ::socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0),
            port = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_un name{};
  name.sun_family = AF_UNIX;
  socklen_t size = sizeof name.sun_family;
  REQUIRE(::bind(datagrams, reinterpret_cast<const sockaddr*>(&name), size) == 0);
  size = sizeof name;
  REQUIRE(::getsockname(datagrams, reinterpret_cast<sockaddr*>(&name), &size) == 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t address_size = sizeof address;
  REQUIRE(::bind(port, reinterpret_cast<const sockaddr*>(&address), address_size) == 0);
  REQUIRE((::listen(port, 4) == 0 &&
           ::getsockname(port, reinterpret_cast<sockaddr*>(&address), &address_size) == 0));
  CHECK(in_child([&](Checks& check) {
          check(sandbox::drop_user("nobody").ok());
          check(sandbox::restrict_files({}).ok());
          check(refused(::kill(victim.pid(), SIGKILL)));
          check(::raise(SIGURG) == 0);
          int ends[2];
          check(::pipe(ends) == 0 && ::fcntl(ends[0], F_SETSIG, SIGKILL) == 0 &&
                ::fcntl(ends[0], F_SETOWN, victim.pid()) == 0);
          check(::fcntl(ends[0], F_SETFL, O_ASYNC) == 0 && ::write(ends[1], "x", 1) == 1);
          const int unix_socket = ::socket(AF_UNIX, SOCK_DGRAM, 0), tcp = ::socket(AF_INET, SOCK_STREAM, 0),
                    other = ::socket(AF_INET, SOCK_STREAM, 0);
          check(refused(::sendto(unix_socket, "x", 1, 0, reinterpret_cast<const sockaddr*>(&name), size)));
          check(refused(::connect(unix_socket, reinterpret_cast<const sockaddr*>(&name), size)));
          check(refused(::connect(tcp, reinterpret_cast<const sockaddr*>(&address), sizeof address), EACCES));
          sockaddr_in any = address;
          any.sin_port = 0;
          check(refused(::bind(other, reinterpret_cast<const sockaddr*>(&any), sizeof any), EACCES));
        }) == 0);
  CHECK(victim.lives());
  for (const int one : {datagrams, port}) ::close(one);
}

#if defined(GPUPOOL_ASAN) || defined(GPUPOOL_TSAN)
TEST_CASE("attacks of one worker on another") {
  gpupool::testing::report_skip("the sanitizers' run-time needs system calls that a worker may not make");
}
#else
namespace {

bool confine() {
  return sandbox::drop_user("nobody").ok() && sandbox::restrict_calls().ok();
}

constexpr uint64_t kIgnoredByTheKernel =
    uint64_t{1} << 32;  // above an int: the kernel ignores it, and so must the filter

bool command_refused(int descriptor, int command, long argument) {
  return refused(::syscall(SYS_fcntl, descriptor, command, argument)) &&
         refused(::syscall(SYS_fcntl, descriptor, static_cast<uint64_t>(command) | kIgnoredByTheKernel,
                           argument));
}

bool request_refused(int descriptor, unsigned request, int argument) {
  return refused(::syscall(SYS_ioctl, descriptor, uint64_t{request}, &argument)) &&
         refused(::syscall(SYS_ioctl, descriptor, request | kIgnoredByTheKernel, &argument));
}

struct Listener {
  int socket = -1;
  sockaddr_in address{};
  Listener() {
    socket = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t size = sizeof address;
    REQUIRE(::bind(socket, reinterpret_cast<const sockaddr*>(&address), size) == 0);
    REQUIRE(::listen(socket, 4) == 0);
    REQUIRE(::getsockname(socket, reinterpret_cast<sockaddr*>(&address), &size) == 0);
  }
  ~Listener() { ::close(socket); }
  int connect() const {
    const int made = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    REQUIRE(::connect(made, reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0);
    return made;
  }
  bool nobody_came() const { return ::accept(socket, nullptr, nullptr) < 0 && errno == EAGAIN; }
};

}  // namespace

TEST_CASE("no descriptor of a worker signals another worker") {
  const Victim victim([] { return confine(); });
  CHECK(in_child([&](Checks& check) {
          check(confine());
          int ends[2];
          check(::pipe(ends) == 0);
          const f_owner_ex owner{F_OWNER_PID, victim.pid()};
          check(command_refused(ends[0], F_SETSIG, SIGKILL));
          check(command_refused(ends[0], F_SETOWN, victim.pid()));
          check(command_refused(ends[0], F_SETOWN_EX, reinterpret_cast<long>(&owner)));
          check(command_refused(ends[0], F_SETFL, O_ASYNC | O_NONBLOCK));
          check(command_refused(ends[0], F_SETLEASE, F_RDLCK));
          check(command_refused(ends[0], F_NOTIFY, DN_ACCESS));
          int sockets[2];
          check(::socketpair(AF_UNIX, SOCK_STREAM, 0, sockets) == 0);
          check(request_refused(sockets[0], 0x8901, victim.pid()));  // FIOSETOWN
          check(request_refused(sockets[0], 0x8902, victim.pid()));  // SIOCSPGRP
          check(request_refused(sockets[0], FIOASYNC, 1));
          check(request_refused(sockets[0], 0x8936, 0));  // another request of the socket type
          for (const int end : {ends[1], sockets[1]})
            check(::write(end, "x", 1) == 1);  // would send the requested signal
        }) == 0);
  CHECK(victim.lives());
}

TEST_CASE("a worker has the descriptor commands that it needs") {
  CHECK(in_child([&](Checks& check) {
          check(confine());
          int ends[2];
          check(::pipe(ends) == 0);
          check(::fcntl(ends[0], F_SETFL, O_NONBLOCK) == 0 && (::fcntl(ends[0], F_GETFL) & O_NONBLOCK) != 0);
          check(::fcntl(ends[0], F_SETFD, FD_CLOEXEC) == 0 && ::fcntl(ends[0], F_GETFD) == FD_CLOEXEC);
          check(::fcntl(ends[0], F_DUPFD_CLOEXEC, 3) >= 0 && ::fcntl(ends[0], F_DUPFD, 3) >= 0);
          check(::fcntl(ends[0], F_SETPIPE_SZ, 8192) >= 8192);
          const int file = ::memfd_create("test", MFD_CLOEXEC | MFD_ALLOW_SEALING);
          struct flock lock {};
          lock.l_type = F_WRLCK;
          check(::fcntl(file, F_SETLK, &lock) == 0 && ::fcntl(file, F_SETLKW, &lock) == 0 &&
                ::fcntl(file, F_GETLK, &lock) == 0);
          check(::fcntl(file, F_ADD_SEALS, F_SEAL_GROW) == 0 && ::fcntl(file, F_GET_SEALS) == F_SEAL_GROW);
          for (unsigned type = 0; type < 0x100;
               ++type) {  // device drivers' types: the pipe rejects them, not the filter
            const bool device = type != 'T' && type != 0x89;
            const bool filtered =
                ::ioctl(ends[0], uint64_t{0xc0de0001} | type << 8, nullptr) < 0 && errno == EPERM;
            check(filtered != device);
          }
        }) == 0);
}

TEST_CASE("a worker sends no datagram to another socket of the host") {
  const int socket = ::socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  socklen_t size = sizeof address.sun_family;
  REQUIRE(::bind(socket, reinterpret_cast<const sockaddr*>(&address), size) ==
          0);  // autobind: the kernel chooses a free abstract name
  size = sizeof address;
  REQUIRE(::getsockname(socket, reinterpret_cast<sockaddr*>(&address), &size) == 0);
  int inherited[2];
  REQUIRE(::socketpair(AF_UNIX, SOCK_DGRAM, 0, inherited) == 0);
  const auto* const target = reinterpret_cast<const sockaddr*>(&address);
  CHECK(in_child([&](Checks& check) {
          check(confine());
          int ends[2];
          check(refused(::socketpair(AF_UNIX, SOCK_DGRAM, 0, ends)));
          check(refused(::socketpair(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, ends)));
          check(refused(::syscall(SYS_socketpair, AF_UNIX, SOCK_DGRAM | kIgnoredByTheKernel, 0, ends)));
          check(refused(::socketpair(AF_INET, SOCK_STREAM, 0, ends)));
          check(refused(::sendto(inherited[0], "x", 1, 0, target, size)));
          check(refused(::connect(inherited[0], target, size)));
          check(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, ends) == 0);
          check(::send(ends[0], "x", 1, 0) == 1);
          check(::sendto(ends[0], "x", 1, 0, target, size) < 0);
          check(::socketpair(AF_UNIX, SOCK_SEQPACKET, 0, ends) == 0);
        }) == 0);
  char byte = 0;
  CHECK((::recv(socket, &byte, 1, 0) < 0 && errno == EAGAIN));
  for (const int end : {inherited[0], inherited[1], socket}) ::close(end);
}

TEST_CASE("a worker can neither reconnect its client's socket nor listen") {
  const Listener client, other;
  const int connection = client.connect();
  CHECK(in_child([&](Checks& check) {
          check(confine());
          const sockaddr nowhere{AF_UNSPEC, {}};
          check(refused(::connect(connection, &nowhere, sizeof nowhere)));
          check(refused(::connect(connection, reinterpret_cast<const sockaddr*>(&other.address),
                                  sizeof other.address)));
          check(refused(::listen(connection, 1)));
          check(refused(::accept(client.socket, nullptr, nullptr)));
          check(refused(::accept4(client.socket, nullptr, nullptr, SOCK_CLOEXEC)));
        }) == 0);
  CHECK(other.nobody_came());
  ::close(connection);
}

TEST_CASE("a worker can bind neither ports nor abstract socket names") {
  // A socket like a client's connection.
  const int internet = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  CHECK(in_child([&](Checks& check) {
          check(confine());
          sockaddr_in port{};
          port.sin_family = AF_INET;
          for (const int type : {SOCK_STREAM, SOCK_DGRAM}) check(refused(::socket(AF_INET, type, 0)));
          check(refused(::bind(internet, reinterpret_cast<const sockaddr*>(&port), sizeof port)));
          int ends[2];
          sockaddr_un name{};
          name.sun_family = AF_UNIX;
          const std::string abstract = "gpupool-attack-" + std::to_string(::getpid());
          abstract.copy(name.sun_path + 1, abstract.size());
          const auto size = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + abstract.size());
          check(::socketpair(AF_UNIX, SOCK_STREAM, 0, ends) == 0);
          check(refused(::bind(ends[0], reinterpret_cast<const sockaddr*>(&name), size)));
          check(refused(::bind(ends[0], reinterpret_cast<const sockaddr*>(&name),
                               sizeof name.sun_family)));  // autobind
          check(refused(::syscall(SYS_bind, ends[0], &name, kIgnoredByTheKernel | size)));
          const int netlink = ::socket(AF_NETLINK, SOCK_RAW | SOCK_CLOEXEC, NETLINK_ROUTE);
          sockaddr_nl own{};
          own.nl_family = AF_NETLINK;
          check(netlink >= 0 && ::bind(netlink, reinterpret_cast<const sockaddr*>(&own), sizeof own) == 0);
        }) == 0);
  ::close(internet);
}

TEST_CASE("a worker cannot delay the close of its connection") {
  const Listener listener;
  const int connection = listener.connect();
  CHECK(in_child([&](Checks& check) {
          check(confine());
          const linger slowly{1, 60};
          const int on = 1;
          check(refused(::setsockopt(connection, SOL_SOCKET, SO_LINGER, &slowly, sizeof slowly)));
          check(refused(::syscall(SYS_setsockopt, connection, SOL_SOCKET | kIgnoredByTheKernel, SO_LINGER,
                                  &slowly, sizeof slowly)));
          check(refused(::syscall(SYS_setsockopt, connection, SOL_SOCKET, SO_LINGER | kIgnoredByTheKernel,
                                  &slowly, sizeof slowly)));
          check(::setsockopt(connection, SOL_SOCKET, SO_KEEPALIVE, &on, sizeof on) == 0);
          check(::setsockopt(connection, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on) == 0);
        }) == 0);
  linger now{};
  socklen_t size = sizeof now;
  CHECK((::getsockopt(connection, SOL_SOCKET, SO_LINGER, &now, &size) == 0 && now.l_onoff == 0));
  ::close(connection);
}

TEST_CASE("a worker cannot change another worker's scheduling or memory or signals") {
  const Victim victim([] { return confine(); });
  cpu_set_t before, after, one;
  REQUIRE(::sched_getaffinity(victim.pid(), sizeof before, &before) == 0);
  CHECK(in_child([&](Checks& check) {
          check(confine());
          CPU_ZERO(&one);
          for (size_t cpu = 0; cpu < CPU_SETSIZE && CPU_COUNT(&one) == 0; ++cpu) {
            if (CPU_ISSET(cpu, &before)) CPU_SET(cpu, &one);
          }
          const sched_param parameter{};
          check(refused(::sched_setaffinity(victim.pid(), sizeof one, &one)));
          check(refused(::sched_setscheduler(victim.pid(), SCHED_IDLE, &parameter)));
          check(refused(::setpriority(PRIO_PROCESS, static_cast<id_t>(victim.pid()), 19)));
          check(refused(::syscall(SYS_move_pages, 0x3fffffff, 0, nullptr, nullptr, nullptr,
                                  0)));  // the filter, not the kernel's ESRCH
          check(refused(::syscall(SYS_get_robust_list, victim.pid(), nullptr, nullptr)));
          check(refused(::kill(victim.pid(), SIGKILL)));
          check(refused(::kill(-1, SIGTERM)));
          check(refused(::syscall(SYS_tgkill, victim.pid(), victim.pid(), SIGKILL)));
          check(refused(::syscall(SYS_tkill, victim.pid(), SIGKILL)));
          check(refused(::syscall(SYS_rt_sigqueueinfo, victim.pid(), SIGKILL, nullptr)));
          check(refused(::shmget(IPC_PRIVATE, 4096, IPC_CREAT | 0600)));
          check(refused(::syscall(SYS_shmat, 0, nullptr, 0)));
          check(refused(::syscall(SYS_mq_open, "/gpupool-test", O_CREAT | O_RDWR, 0600, nullptr)));
          check(::sched_setaffinity(0, sizeof one, &one) == 0);
        }) == 0);
  CHECK(victim.lives());
  REQUIRE(::sched_getaffinity(victim.pid(), sizeof after, &after) == 0);
  CHECK(CPU_EQUAL(&before, &after));
}

TEST_CASE("a worker changes only harmless attributes of its process") {
  CHECK(in_child([&](Checks& check) {
          check(confine());
          check(::prctl(PR_SET_NAME, "test") == 0);
          check(::prctl(PR_GET_NO_NEW_PRIVS, 0, 0, 0, 0) == 1);
          check(refused(::prctl(PR_SET_DUMPABLE, 1)));
          check(refused(::syscall(SYS_prctl, PR_SET_DUMPABLE | kIgnoredByTheKernel, 1, 0, 0, 0)));
          check(refused(::prctl(PR_SET_PDEATHSIG, 0)));
          check(refused(::prctl(PR_SET_PTRACER, PR_SET_PTRACER_ANY)));
          check(refused(::prctl(PR_SET_CHILD_SUBREAPER, 1)));
          check(refused(::syscall(SYS_inotify_init1, 0)));
          check(refused(::syscall(SYS_splice, 0, nullptr, 1, nullptr, 1, 0)));
        }) == 0);
}
#endif
