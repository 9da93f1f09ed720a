// Landlock: which of it the running kernel has, and which files it leaves to a worker. Used by the worker, which restricts itself
// (sandbox::restrict_files()), and by poold, which says what is missing and whether a worker could read poold's own secrets. Any thread.
#pragma once
#include <string>
#include <vector>

namespace gpupool::worker::sandbox {

// The versions of the kernel's interface that a worker makes use of.
constexpr int kLandlockFiles = 1;   // Linux 5.13
constexpr int kLandlockTcp = 4;     // Linux 6.7
constexpr int kLandlockScopes = 6;  // Linux 6.12: abstract Unix sockets and signals

// The version that the running kernel has; 0: none (before Linux 5.13, not built in, or switched off).
int landlock_version();

// Whether a worker may read `path`, which exists, beside what the permissions of files say. `more`: as in restrict_files().
bool is_readable(const std::string& path, const std::vector<std::string>& more);

}  // namespace gpupool::worker::sandbox
