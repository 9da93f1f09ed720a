// The part of a session's dump that its worker sends: not trusted, since a worker runs what its client makes it run.
#pragma once
#include <string>

#include "protocol/control/dump.pb.h"
#include "protocol/wire/result.h"

namespace gpupool::server {

// With printable texts of bounded length and lists of bounded size. ErrorCode::malformed: not a serialized WorkerDump.
Result<admin::WorkerDump> read_worker_dump(const std::string& bytes);

}  // namespace gpupool::server
