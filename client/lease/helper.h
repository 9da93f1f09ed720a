// Starts pool-lease, the program that gets GPUs from a pool's scheduler and holds them as long as this process lives, whatever it
// becomes by exec. The library has no gRPC of its own, which would get in the way of the program's.
//
// Any thread. It never returns a lease that is not there; while the request waits in the queue, pool-lease tells so on stderr.
#pragma once
#include <string>

#include "protocol/wire/result.h"

namespace gpupool::client {

// `holder`: pool-lease's path; `address`: pool://...; `program`: what people call the one that wants the lease. The lease file's path. ErrorCode::refused: the scheduler's, or pool-lease's reason;
// invalid: the address; unavailable: it cannot be started.
Result<std::string> acquire_lease(const std::string& holder, const std::string& address, const std::string& program);

}  // namespace gpupool::client
