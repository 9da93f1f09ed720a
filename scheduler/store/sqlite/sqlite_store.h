// Implementation of Store (store.h) in a local SQLite file. The leader holds a lock (flock) on FILE.leader,
// so there is one leader among the processes of this host, and the lock of a dead leader is free at once. Not
// for network file systems, where neither SQLite nor flock is reliable.
#pragma once
#include "scheduler/store/store.h"

namespace gpupool::scheduler {

Result<std::unique_ptr<Store>> open_sqlite_store(const std::string& file);

}  // namespace gpupool::scheduler
