// Memory that is mapped but unused: idle slabs for small allocations, and free memory of memory pools. Any
// thread.
#pragma once
#include "client/session/call.h"

namespace gpupool::client {

// Bytes of idle slabs that may stay mapped on the device. Smaller if the tenant's memory is limited, because
// other programs of the tenant could use it.
uint64_t most_idle_bytes(const Session& session, const Device& device);

// Returns idle memory of the device to the server, so that a failed allocation can be retried; false: there
// was none. If `include_unsettled`, includes free pool blocks whose work may not be complete; the server
// waits for that work.
bool give_back_idle(Session& session, const Device& device, bool include_unsettled = true);

}  // namespace gpupool::client
