// The introduction of this process in the hellos for sessions, checkpoints and NVML. Thread-safe.
#pragma once
#include "protocol/control/hello_codec.h"

namespace gpupool::client {

// Returns a Hello with versions, program, host and process id. The caller fills in the rest.
hello::Hello introduction();

}  // namespace gpupool::client
