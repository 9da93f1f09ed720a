// Completes a session's dump: the worker's answer, which is untrusted, and poold's own data. poold's thread.
#pragma once
#include <string>

#include "protocol/control/dump.pb.h"
#include "server/poold/workers/worker_pool.h"

namespace gpupool::server {

// `said`: a serialized admin::WorkerDump, or the reason why there is none.
admin::SessionDump complete_dump(const SessionView& session, const Result<std::string>& said);

}  // namespace gpupool::server
