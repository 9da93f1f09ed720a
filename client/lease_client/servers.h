// Translates a grant of the scheduler into the servers of a lease file. Used by pool-lease and
// client/kubernetes/. Pure; any thread.
#pragma once
#include <vector>

#include "client/lease/file.h"
#include "protocol/control/pool.pb.h"

namespace gpupool::lease_client {

// ErrorCode::malformed: an address is invalid, or a move names no server of the lease.
Result<std::vector<client::LeasedServer>> servers_of(const pool::Granted& granted);

}  // namespace gpupool::lease_client
