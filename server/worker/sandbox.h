// What a worker gives up before a client's bytes reach it: another user's rights, files that it has no need of, and system
// calls with which a process that has been taken over would reach beyond itself. docs/security.md says what is left.
//
// Steps, in this order, all while the process has one thread (the last excepted): drop_user(), restrict_files(), then cuInit and
// whatever the device library opens, then restrict_calls(). A step that the kernel does not know is told and left out; a step that fails is an
// error. Nothing can be undone.
#pragma once
#include <string>
#include <vector>

#include "protocol/wire/result.h"

namespace gpupool::worker::sandbox {

// For a process of root: becomes `user` with its groups and those that own GPUs (video, render), and may lock as much memory as root may
// (RDMA does). For any process: no core files, no new privileges by exec.
Result<void> drop_user(const std::string& user);

// Files and folders below these stay within reach, nothing else does; devices and shared memory may be written, and below `cache`, unless
// empty, folders made. Returns what the kernel does not know, empty if it does.
Result<std::string> restrict_files(const std::vector<std::string>& readable, const std::string& cache = "");

// System calls from now on, of all threads: what drivers, verbs, sockets, memory and threads need. No other program, no new process, no
// other process's memory, no change of users, names or mounts. They fail with EPERM. `outward`: may open connections by TCP.
Result<void> restrict_calls(bool outward);

}  // namespace gpupool::worker::sandbox
