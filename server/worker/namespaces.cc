#include "server/worker/namespaces.h"

#include <sched.h>
#include <sys/mount.h>

namespace gpupool::worker::sandbox {
namespace {

// The processes keep their numbers, so that poold, logs and drivers know a worker by one number: what other processes do is hidden by a /proc of its own.
bool hide_processes() {
  if (::unshare(CLONE_NEWNS) != 0) return false;
  // Mounts and unmounts of the host still come, so that a worker keeps no file system busy; its own do not leave.
  if (::mount("", "/", "", MS_REC | MS_SLAVE, nullptr) != 0) return false;
  return ::mount("proc", "/proc", "proc", MS_NOSUID | MS_NODEV | MS_NOEXEC, "hidepid=invisible") == 0;  // by mount since Linux 5.8
}

}  // namespace

Namespaces separate(const Namespaces& wanted) {
  Namespaces made;
  made.processes = wanted.processes && hide_processes();
  made.ipc = wanted.ipc && ::unshare(CLONE_NEWIPC) == 0;
  made.network = wanted.network && ::unshare(CLONE_NEWNET) == 0;
  return made;
}

}  // namespace gpupool::worker::sandbox
