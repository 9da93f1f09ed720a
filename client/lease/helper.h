// Starts pool-lease, the program that acquires GPUs from a pool's scheduler and holds them while this process
// lives, even across exec. The library itself does not link gRPC, which could conflict with the program's
// own.
//
// Used by pool-run and by the library at cuInit. Any thread; blocks until the lease is granted or refused.
// While the request is queued, pool-lease reports its place on stderr.
#pragma once
#include <string>

#include "common/result.h"

namespace gpupool::client {

// `holder`: path of pool-lease; `address`: pool://...; `program`: name of the program, for display. Returns
// the path of the lease file. ErrorCode::refused: the reason given by the scheduler or by pool-lease;
// invalid: the address is wrong; unavailable: pool-lease cannot be started.
Result<std::string> acquire_lease(const std::string& holder, const std::string& address,
                                  const std::string& program);

}  // namespace gpupool::client
