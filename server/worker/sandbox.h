// What a worker gives up before a client's bytes reach it: another user's rights, files that it has no need of, and system
// calls with which a process that has been taken over would reach beyond itself. docs/security.md says what is left.
//
// Steps, in this order, all while the process has one thread (the last excepted): hide_memory(), separate() (namespaces.h), drop_user(), restrict_files(),
// then cuInit and whatever the device library opens, then restrict_calls(). A step that the kernel does not know is left out (poold says so at its start, confinement.h);
// a step that fails is an error. Nothing can be undone.
#pragma once
#include <string>
#include <vector>

#include "protocol/wire/result.h"

namespace gpupool::worker::sandbox {

// Keeps other processes of the same user from this one's memory and descriptors (/proc/PID/mem, ptrace). Gone with an exec.
Result<void> hide_memory();

// For a process of root: becomes `user`, a name or a number, with its groups and those that own GPUs (video, render), and may lock as much memory
// as root may (RDMA does). For any process: no core files, no new privileges by exec, and hide_memory() again, which a change of the user undoes.
Result<void> drop_user(const std::string& user);

// Where each session has a user of its own: bounds the number of its threads, fails if another process has this one's user (it waits for those that
// are just ending), and removes what an earlier session left in shared memory. `processes`: the host's /proc, which this process may not see any more.
Result<void> take_over_user(int processes);

// Files and folders below these stay within reach, nothing else does; devices and shared memory may be written, and below `cache`, unless
// empty, folders made. Where the kernel knows it: neither TCP ports nor TCP connections; no abstract Unix sockets and no
// signals of processes that are not restricted together with this one.
Result<void> restrict_files(const std::vector<std::string>& readable, const std::string& cache = "");

enum class Calls { refuse, log };

// System calls from now on, of all threads: what drivers, verbs, sockets, memory and threads need. No other program, no new process, no
// other process's memory, no change of users, names or mounts. They fail with EPERM; with `log` they are made, and the kernel's log has them.
Result<void> restrict_calls(Calls others = Calls::refuse);

}  // namespace gpupool::worker::sandbox
