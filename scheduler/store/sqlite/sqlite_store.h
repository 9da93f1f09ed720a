// The store in one file of this host, with another beside it, FILE.leader, whose lock the leader has: so there is one leader among the
// processes of this host, and a dead one is followed at once. Not for network file systems, where neither SQLite nor locks hold.
#pragma once
#include "scheduler/store/store.h"

namespace gpupool::scheduler {

Result<std::unique_ptr<Store>> open_sqlite_store(const std::string& file);

}  // namespace gpupool::scheduler
