// Tests the sandbox: a child process confines itself as a worker does, tries forbidden and needed operations,
// and reports the result by its exit status.
#include "server/worker/sandbox/sandbox.h"

#include <fcntl.h>
#include <grp.h>
#include <sched.h>
#include <signal.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/ptrace.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>
#include <thread>

#include "protocol/transport/socket/descriptors.h"
#include "server/confinement/landlock.h"
#include "tests/server/worker/sandbox/confined_children.h"
#include "tests/support/skip.h"

using namespace gpupool;
using namespace gpupool::testing;
namespace sandbox = gpupool::worker::sandbox;

namespace {

bool has_landlock(int version = sandbox::kLandlockFiles) {
  return sandbox::landlock_version() >= version;
}

bool readable(const std::string& path) {
  const int file = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (file >= 0) ::close(file);
  return file >= 0;
}

}  // namespace

TEST_CASE("a root process changes to another user irrevocably") {
  if (::geteuid() != 0) return gpupool::testing::report_skip("only root becomes another user");
  CHECK(in_child([](Checks& check) {
          check(sandbox::drop_user("nobody").ok());
          check(::getuid() == 65534 && ::geteuid() == 65534 && ::getgid() == 65534);
          check(refused(::setuid(0)));
          check(refused(::setgroups(0, nullptr)));
          check(::prctl(PR_GET_NO_NEW_PRIVS, 0, 0, 0, 0) == 1);
          rlimit limit{};
          check(::getrlimit(RLIMIT_CORE, &limit) == 0 && limit.rlim_max == 0);
          check(::getrlimit(RLIMIT_MEMLOCK, &limit) == 0 && limit.rlim_cur == limit.rlim_max);
          check(::open("/etc/shadow", O_RDONLY) < 0);
        }) == 0);
}

TEST_CASE("reports an unknown worker user") {
  if (::geteuid() != 0) return gpupool::testing::report_skip("only root becomes another user");
  CHECK(in_child([](Checks& check) {
          const auto dropped = sandbox::drop_user("no-such-user");
          check(!dropped.ok() && dropped.error().message.find("--worker-users") != std::string::npos);
          check(::geteuid() == 0);
        }) == 0);
}

TEST_CASE("a worker can open only libraries and devices and its library's folder") {
  if (!has_landlock()) return gpupool::testing::report_skip("this kernel has no Landlock");
  const TemporaryFolder kept, other;
  const std::string readable = kept.write("library", "x"), secret = other.write("secret", "x");
  CHECK(in_child([&](Checks& check) {
          check(sandbox::drop_user("").ok());
          check(sandbox::restrict_files({kept.path().string()}).ok());
          check(::open(readable.c_str(), O_RDONLY) >= 0);
          check(refused(::open(readable.c_str(), O_WRONLY), EACCES));
          check(refused(::open((kept.path() / "new").c_str(), O_WRONLY | O_CREAT, 0600), EACCES));
          check(refused(::open(secret.c_str(), O_RDONLY), EACCES));
          check(refused(::open("/", O_RDONLY | O_DIRECTORY), EACCES));
          check(refused(::open("/usr/gpupool-test", O_WRONLY | O_CREAT, 0600), EACCES));
          check(refused(::mkdir("/dev/shm/gpupool-test", 0700), EACCES));
          check(::open("/usr", O_RDONLY | O_DIRECTORY) >= 0);
          check(::open("/dev/null", O_RDWR) >= 0);
          const std::string shared = "/dev/shm/gpupool-sandbox-test-" + std::to_string(::getpid());
          check(::open(shared.c_str(), O_RDWR | O_CREAT, 0600) >= 0);
          check(::unlink(shared.c_str()) == 0);
        }) == 0);
}

TEST_CASE("a worker reads only the files of /etc that loaders and name resolution and TLS need") {
  if (!has_landlock()) return gpupool::testing::report_skip("this kernel has no Landlock");
  CHECK(in_child([](Checks& check) {  // as poold's own user, which could read all of them
          check(sandbox::drop_user("").ok());
          const bool ssl = ::access("/etc/ssl/private", R_OK | X_OK) == 0, shadow = readable("/etc/shadow");
          check(sandbox::restrict_files({}).ok());
          if (ssl) check(refused(::open("/etc/ssl/private", O_RDONLY | O_DIRECTORY), EACCES));
          if (shadow) check(refused(::open("/etc/shadow", O_RDONLY), EACCES));
          check(refused(::open("/etc", O_RDONLY | O_DIRECTORY), EACCES));
          for (const char* const needed : {"/etc/passwd", "/etc/nsswitch.conf", "/etc/ld.so.cache"})
            check(::access(needed, F_OK) != 0 || readable(needed));
        }) == 0);
}

TEST_CASE("a worker opens the devices of GPUs and no others") {
  if (!has_landlock()) return gpupool::testing::report_skip("this kernel has no Landlock");
  CHECK(in_child([](Checks& check) {
          check(sandbox::drop_user("").ok());
          check(sandbox::restrict_files({}).ok());
          for (const char* const device : {"/dev/null", "/dev/zero", "/dev/urandom"}) check(readable(device));
          const std::string shared = "/dev/shm/gpupool-sandbox-test-" + std::to_string(::getpid());
          check(::open(shared.c_str(), O_RDWR | O_CREAT | O_EXCL, 0600) >= 0 &&
                ::unlink(shared.c_str()) == 0);
          for (const char* const other : {"/dev", "/dev/tty", "/dev/ptmx", "/dev/kmsg", "/dev/kvm",
                                          "/dev/fuse", "/dev/net/tun", "/dev/mqueue", "/dev/pts"})
            check(!readable(other));
        }) == 0);
  if (::geteuid() != 0) return gpupool::testing::report_skip("only root can make a folder /dev of its own");
  const int status = in_child([](Checks& check) {
    if (::unshare(CLONE_NEWNS) != 0) ::_exit(77);
    check(::mount("", "/", "", MS_REC | MS_PRIVATE, nullptr) == 0 &&
          ::mount("test", "/dev", "tmpfs", 0, nullptr) == 0);
    check(::mkdir("/dev/nvidia-caps", 0755) == 0);
    for (const char* const made : {"/dev/nvidia0", "/dev/nvidia-caps/nvidia-cap1", "/dev/nvram"})
      check(::open(made, O_RDWR | O_CREAT | O_CLOEXEC, 0666) >= 0);
    check(sandbox::drop_user("").ok());
    check(sandbox::restrict_files({}).ok());
    check(::open("/dev/nvidia0", O_RDWR) >= 0 && ::open("/dev/nvidia-caps/nvidia-cap1", O_RDWR) >= 0);
    check(refused(::open("/dev/nvram", O_RDWR), EACCES));
    check(refused(::open("/dev/nvidia1", O_RDWR | O_CREAT, 0600), EACCES));
  });
  if (status == 77) return gpupool::testing::report_skip("this process may not make a mount namespace");
  CHECK(status == 0);
}

TEST_CASE("a worker makes folders below the one for the driver's cache and nowhere else") {
  if (!has_landlock()) return gpupool::testing::report_skip("this kernel has no Landlock");
  const TemporaryFolder cache, other;
  CHECK(in_child([&](Checks& check) {
          check(sandbox::drop_user("").ok());
          check(sandbox::restrict_files({}, cache.path().string()).ok());
          const std::string folder = cache.path() / "1";
          check(::mkdir(folder.c_str(), 0700) == 0);
          const int file = ::open((folder + "/entry").c_str(), O_RDWR | O_CREAT | O_TRUNC, 0600);
          check(file >= 0 && ::write(file, "x", 1) == 1);
          check(::unlink((folder + "/entry").c_str()) == 0 && ::rmdir(folder.c_str()) == 0);
          check(refused(::mkdir((other.path() / "1").c_str(), 0700), EACCES));
        }) == 0);
}

#if defined(GPUPOOL_ASAN) || defined(GPUPOOL_TSAN)
TEST_CASE("a worker cannot start or access processes or change the host") {
  gpupool::testing::report_skip("the sanitizers' run-time needs system calls that a worker may not make");
}
#else
TEST_CASE("a worker cannot start or access processes or change the host") {
  const pid_t parent = ::getpid();
  CHECK(in_child([&](Checks& check) {
          check(sandbox::drop_user("").ok());
          check(sandbox::restrict_calls().ok());
          const char* const words[] = {"true", nullptr};
          check(refused(::execve("/bin/true", const_cast<char* const*>(words), nullptr)));
          check(refused(
              ::syscall(SYS_execveat, ::memfd_create("program", 0), "", words, nullptr, AT_EMPTY_PATH)));
          check(refused(::syscall(SYS_clone, SIGCHLD, nullptr, nullptr, nullptr, nullptr)));
          check(refused(::syscall(SYS_clone3, nullptr, 0), ENOSYS));
          check(refused(::kill(parent, 0)));
          check(refused(::syscall(SYS_tgkill, parent, parent, SIGTERM)));
          check(refused(::ptrace(PTRACE_ATTACH, parent, nullptr, nullptr)));
          check(refused(::syscall(SYS_process_vm_readv, parent, nullptr, 0, nullptr, 0, 0)));
          check(refused(::syscall(SYS_process_vm_writev, parent, nullptr, 0, nullptr, 0, 0)));
          check(refused(::syscall(SYS_pidfd_open, parent, 0)));
          check(refused(::syscall(SYS_pidfd_getfd, 0, 0, 0)));
          check(refused(::syscall(SYS_kcmp, parent, ::getpid(), 0, 0, 0)));
          check(refused(::syscall(SYS_perf_event_open, nullptr, parent, -1, -1, 0)));
          check(refused(::syscall(SYS_bpf, 0, nullptr, 0)));
          check(refused(::syscall(SYS_io_uring_setup, 1, nullptr)));
          check(refused(::syscall(SYS_userfaultfd, 0)));
          check(refused(::syscall(SYS_unshare, 0)));
          for (const long call : {SYS_keyctl, SYS_add_key, SYS_request_key, SYS_mount, SYS_setns, SYS_semget,
                                  SYS_msgget, SYS_setsid})
            check(refused(::syscall(call, 0, 0, 0, 0, 0)));
          check(refused(::chmod("/tmp", 0700)));
          check(refused(::rename("/nowhere", "/nowhere-else")));
          check(refused(::setuid(::getuid())));
          rlimit limit{};
          check(refused(::syscall(SYS_prlimit64, parent, RLIMIT_CORE, nullptr, &limit)));
          check(refused(::socket(AF_UNIX, SOCK_STREAM, 0)));
          check(refused(::socket(AF_PACKET, SOCK_RAW, 0)));
          char typed = '\n';
          check(refused(::ioctl(0, TIOCSTI, &typed)));
          check(refused(::syscall(SYS_ioctl, 0, uint64_t{TIOCSTI} | uint64_t{1} << 32, &typed)));
        }) == 0);
}

#if defined(__x86_64__)
TEST_CASE("kills a worker that uses another architecture's system calls") {
  const auto confined = [](Checks& check) {
    check(sandbox::drop_user("").ok());
    check(sandbox::restrict_calls().ok());
  };
  CHECK(in_child([&](Checks& check) {
          confined(check);
          ::syscall(0x40000000 | SYS_socket, AF_UNIX, SOCK_STREAM, 0);  // x32
        }) == 1000 + SIGSYS);
  // 32-bit x86 system call 20 is getpid, but 20 is writev on x86-64. A kernel without 32-bit calls ends the
  // process with SIGSEGV.
  CHECK(in_child([&](Checks& check) {
          confined(check);
          long number = 20;
          asm volatile("int $0x80" : "+a"(number) : : "memory", "r8", "r9", "r10", "r11");
        }) >= 1000);
}
#endif

TEST_CASE("allows the system calls that drivers and connections need") {
  CHECK(in_child([](Checks& check) {
          check(sandbox::drop_user("").ok());
          check(sandbox::restrict_calls().ok());
          bool ran = false;
          std::thread([&] { ran = true; }).join();
          check(ran);
          check(::mmap(nullptr, 4096, PROT_READ | PROT_WRITE | PROT_EXEC, MAP_PRIVATE | MAP_ANONYMOUS, -1,
                       0) != MAP_FAILED);
          check(::memfd_create("test", MFD_CLOEXEC) >= 0);
          int ends[2];
          check(::socketpair(AF_UNIX, SOCK_SEQPACKET, 0, ends) == 0);
          check(::setsockopt(ends[0], SOL_SOCKET, transport::kPassRights, &ends[0], sizeof ends[0]) == 0 ||
                errno == ENOPROTOOPT);  // before Linux 6.16
          int pending = 0;
          check(::ioctl(ends[0], FIONREAD, &pending) == 0);
          check(::ioctl(ends[0], 0xc0de4601, &pending) < 0 && errno != EPERM);  // ioctl type 'F', as NVIDIA's
          check(::kill(::getpid(), 0) == 0);
          check(::raise(SIGURG) == 0);
        }) == 0);
}

TEST_CASE("performs disallowed calls where they are only logged") {
  CHECK(in_child([](Checks& check) {
          check(sandbox::drop_user("").ok());
          check(sandbox::restrict_calls(sandbox::Calls::log).ok());
          check(::prctl(PR_GET_SECCOMP) == 2);
          check(::socket(AF_UNIX, SOCK_STREAM, 0) >= 0);
          check(::kill(::getppid(), 0) == 0 || ::geteuid() == 65534);
        }) == 0);
}

TEST_CASE("a worker opens no connection") {
  CHECK(in_child([](Checks& check) {
          check(sandbox::drop_user("").ok());
          check(sandbox::restrict_calls().ok());
          check(refused(::socket(AF_INET, SOCK_STREAM, 0)));
          check(refused(::socket(AF_INET6, SOCK_DGRAM, 0)));
        }) == 0);
}
#endif

TEST_CASE("poold knows which files a worker could read") {
  if (!has_landlock()) return gpupool::testing::report_skip("this kernel has no Landlock");
  const TemporaryFolder folder, other;
  const std::string file = folder.write("key", "x");
  CHECK_FALSE(sandbox::is_readable(file, {}));
  CHECK_FALSE(sandbox::is_readable(file, {other.path()}));
  CHECK(sandbox::is_readable(file, {folder.path()}));
  CHECK(sandbox::is_readable(file, {folder.path().string() + "/"}));
  CHECK_FALSE(sandbox::is_readable("/etc/shadow", {}));
  CHECK(sandbox::is_readable("/etc/passwd", {}));
  std::filesystem::create_symlink("/etc/passwd", folder.path() / "link");
  CHECK(sandbox::is_readable(folder.path() / "link", {}));
}
