// A session's dump for people: what its worker says, which is not trusted, and what poold knows itself. poold's one thread.
#pragma once
#include <string>

#include "protocol/control/dump.pb.h"
#include "server/worker_pool.h"

namespace gpupool::server {

// `said`: a serialized admin::WorkerDump, or why there is none.
admin::SessionDump complete_dump(const SessionView& session, const Result<std::string>& said);

}  // namespace gpupool::server
