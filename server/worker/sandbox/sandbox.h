// Confinement of a worker before it handles a client's bytes: gives up the user's privileges, access to
// unneeded files, and system calls through which a compromised process could affect others. docs/security.md
// describes what remains.
//
// Steps, in this order, all while the process has one thread (except the last): hide_memory(), separate()
// (server/confinement/namespaces.h), drop_user(), restrict_files()
// (server/confinement/landlock.h), then cuInit and everything that the device library opens,
// then restrict_calls(). Steps that the kernel does not support are skipped (poold reports that at its start,
// confinement.h); failed steps are errors. Nothing can be undone.
#pragma once
#include <string>

#include "common/result.h"

namespace gpupool::worker::sandbox {

// Denies other processes of the same user access to this process's memory and descriptors (/proc/PID/mem,
// ptrace). Reset by exec.
Result<void> hide_memory();

// If root: changes to `user` (name or number) with its group and the groups that own GPUs (video, render),
// and raises the limit of locked memory as far as root can (for RDMA). In any process: disables core files
// and new privileges by exec, and repeats hide_memory(), which a change of the user resets.
Result<void> drop_user(const std::string& user);

// For sessions with a user of their own: limits the number of threads, fails if another process runs as the
// same user (after waiting up to 3 s for processes that are ending), and removes files of earlier sessions
// from /dev/shm. `processes`: the host's /proc, which may be hidden from this process.
Result<void> claim_user(int processes);

enum class Calls { refuse, log };

// Installs a system-call filter for all threads. Allows what drivers, verbs, sockets, memory and threads
// need, but no other program, new process, access to other processes' memory, or change of users, names or
// mounts. Other calls fail with EPERM; with `log` they are executed and recorded in the kernel's log.
Result<void> restrict_calls(Calls others = Calls::refuse);

}  // namespace gpupool::worker::sandbox
