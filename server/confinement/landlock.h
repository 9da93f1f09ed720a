// Landlock support: the version that the running kernel offers, and the files that remain accessible to a
// worker. Used by workers, which restrict themselves (restrict_files()), and by poold, which reports
// missing features and checks whether a worker could read poold's secrets. Any thread.
#pragma once
#include <string>
#include <vector>

#include "common/result.h"

namespace gpupool::worker::sandbox {

// Versions of the kernel's Landlock ABI that workers make use of.
constexpr int kLandlockFiles = 1;   // Linux 5.13
constexpr int kLandlockTcp = 4;     // Linux 6.7
constexpr int kLandlockScopes = 6;  // Linux 6.12: abstract Unix sockets and signals

// Returns the ABI version of the running kernel; 0: none (before Linux 5.13, not built in, or disabled).
int landlock_version();

// True if Landlock lets a worker read `path`, which must exist; file permissions are not considered. `more`:
// as `readable` of restrict_files().
bool is_readable(const std::string& path, const std::vector<std::string>& more);

// Restricts access to files and folders below `readable` and to what drivers need; devices and shared memory
// may be written, and folders created below `cache`, unless it is empty. Where Landlock supports it, also
// denies TCP ports and connections, abstract Unix sockets, and signals to processes that are not restricted
// together with this one.
Result<void> restrict_files(const std::vector<std::string>& readable, const std::string& cache = "");

}  // namespace gpupool::worker::sandbox
