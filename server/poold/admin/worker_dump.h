// Parses the part of a session's dump that its worker sends. It is untrusted, since a worker executes a
// client's commands.
#pragma once
#include <string>

#include "common/result.h"
#include "protocol/control/dump.pb.h"

namespace gpupool::server {

// Makes texts printable and limits their length, and the length of lists. ErrorCode::malformed: not a
// serialized WorkerDump.
Result<admin::WorkerDump> read_worker_dump(const std::string& bytes);

}  // namespace gpupool::server
