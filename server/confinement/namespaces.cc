#include "server/confinement/namespaces.h"

#include <sched.h>
#include <sys/mount.h>

namespace gpupool::worker::sandbox {
namespace {

// Uses a separate /proc instead of a PID namespace, so that poold, logs and drivers know a worker by the same
// PID.
bool hide_processes() {
  if (::unshare(CLONE_NEWNS) != 0) return false;
  // The host's mounts and unmounts still propagate into the namespace, so a worker keeps no file system busy;
  // its own mounts do not propagate out.
  if (::mount("", "/", "", MS_REC | MS_SLAVE, nullptr) != 0) return false;
  // Per mount since Linux 5.8.
  return ::mount("proc", "/proc", "proc", MS_NOSUID | MS_NODEV | MS_NOEXEC, "hidepid=invisible") == 0;
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
