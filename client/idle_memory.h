// Memory that stays mapped without being used: for small allocations to come, and in memory pools.
#pragma once
#include "client/call.h"

namespace gpupool::client {

// Bytes of small mappings that may stay mapped for later allocations. Where the tenant's memory is limited, other programs of the
// tenant go without them.
uint64_t most_idle_bytes(const Session& session, const Device& device);

// Returns idle memory of the device to the server, so that an allocation that failed can be retried; false if there was none. Free blocks
// of memory pools whose work may not be done are included if `unsettled_too`; the server waits for that work.
bool give_back_idle(Session& session, const Device& device, bool unsettled_too = true);

}  // namespace gpupool::client
