// chaos-host: creates and enters the machines of the chaos test, which consist of namespaces. Used by
// network.cc.
//
//   chaos-host init NAME             becomes the init process of a new machine; prints "up" and waits.
//                                    Killing it kills all processes on the machine.
//   chaos-host try                   checks that machines can be created; exits with 0, or prints the reason.
//   chaos-host enter PID PROGRAM...  runs PROGRAM on the machine with init process PID; exits as it does.
//
// Each dies with the process that started it, so that a killed test leaves nothing behind.
#include <sched.h>
#include <signal.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>

namespace {

constexpr int kOwn = CLONE_NEWNET | CLONE_NEWNS | CLONE_NEWUTS | CLONE_NEWPID | CLONE_NEWIPC;

int fail(const std::string& doing) {
  std::fprintf(stderr, "chaos-host: %s: %s\n", doing.c_str(), std::strerror(errno));
  return 125;
}

void die_with_parent() {
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
}

// Mounts private file systems in memory, whose content disappears when the machine is switched off.
bool mount_own() {
  return ::mount("none", "/", nullptr, MS_REC | MS_PRIVATE, nullptr) == 0 &&
         ::mount("proc", "/proc", "proc", MS_NOSUID | MS_NODEV | MS_NOEXEC, nullptr) == 0 &&
         ::mount("tmpfs", "/dev/shm", "tmpfs", MS_NOSUID | MS_NODEV, "mode=1777") == 0 &&
         ::mount("tmpfs", "/run", "tmpfs", MS_NOSUID | MS_NODEV, "mode=755") == 0;
}

int be_first(const std::string& name) {
  die_with_parent();
  if (!mount_own()) return fail("mounting");
  if (::sethostname(name.c_str(), name.size()) != 0) return fail("sethostname");
  ::signal(SIGCHLD, SIG_IGN);  // the kernel reaps orphans
  std::puts("up");
  std::fflush(stdout);
  for (;;) ::pause();
}

int wait_for(pid_t child) {
  int status = 0;
  while (::waitpid(child, &status, 0) < 0) {
    if (errno != EINTR) return fail("waitpid");
  }
  return WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
}

template <class Be>
int init(Be be) {
  if (::unshare(kOwn) != 0) return fail("unshare");
  const pid_t child = ::fork();
  if (child < 0) return fail("fork");
  return child == 0 ? be() : wait_for(child);
}

int enter(pid_t first, char** words) {
  const int machine = static_cast<int>(::syscall(SYS_pidfd_open, first, 0));
  if (machine < 0 || ::setns(machine, kOwn) != 0) return fail("entering");
  ::close(machine);
  const pid_t child = ::fork();
  if (child < 0) return fail("fork");
  if (child != 0) return wait_for(child);
  die_with_parent();
  ::execvp(words[0], words);
  return fail(words[0]);
}

}  // namespace

int main(int count, char** words) {
  die_with_parent();
  const std::string what = count > 2 ? words[1] : "";
  if (what == "init" && count == 3) return init([&] { return be_first(words[2]); });
  if (count == 2 && std::string(words[1]) == "try")
    return init([] { return mount_own() ? 0 : fail("mounting"); });
  if (what == "enter" && count > 3)
    return enter(static_cast<pid_t>(std::strtol(words[2], nullptr, 10)), words + 3);
  std::fprintf(stderr, "usage: chaos-host init NAME | try | enter PID PROGRAM...\n");
  return 2;
}
