// Writes a daemon's port to a file for the program that started the daemon. poold and pool-scheduler use it.
#pragma once
#include <cstdint>
#include <string>

#include "common/result.h"

namespace gpupool {

// Replaces the file atomically, so that a reader never sees a part of it. ErrorCode::unavailable: it cannot
// be written.
Result<void> write_port_file(const std::string& path, uint16_t port);

}  // namespace gpupool
