// Files of the host that containers get. gpupool-kubernetes runs in a container itself, so it copies the
// client library from its image to a folder of the host, which is mounted at the same path. Called once at
// the start.
#pragma once
#include <string>

#include "client/run/environment.h"
#include "common/result.h"

namespace gpupool::kubernetes {

// Copies bin/pool-lease, bin/pool-smi, lib/client and the libraries beside it to FOLDER/client-HASH, unless
// they are there, and returns their paths there. The hash is of all files: containers that run keep the
// version that they have. The folder gets its name when it is on the disk as a whole. ErrorCode::unavailable:
// a file cannot be copied.
Result<run::Installation> copy_installation(const run::Installation& from, const std::string& folder);

// Copies a file to FOLDER/NAME and returns its path; empty for an empty one.
Result<std::string> copy_file(const std::string& from, const std::string& folder, const std::string& name);

}  // namespace gpupool::kubernetes
