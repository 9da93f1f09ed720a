// Reads poold's options for suspended sessions. Call it before poold starts other threads.
#pragma once
#include "common/result.h"
#include "server/poold/options.h"
#include "server/poold/workers/suspended_files.h"

namespace gpupool::server {

// Reads the key. ErrorCode::invalid: the key file cannot be read, is too short, or others can read it; or the
// folder cannot be used.
Result<SuspendedFiles::Settings> suspended_files(const ServerOptions& options);

}  // namespace gpupool::server
