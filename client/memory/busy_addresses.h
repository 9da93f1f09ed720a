// The address ranges that this process already uses. They are sent to the servers (avoid_addresses): a
// managed variable that a server's driver places there could not be mirrored in this process. Called once, at
// connect.
#pragma once
#include <vector>

#include "protocol/wire/commands.h"

namespace gpupool::client {

// Returns a few large ranges, rounded outwards to 64 GiB for later mappings of the program. Reads
// /proc/self/maps; empty if that fails.
std::vector<wire::AddressRange> busy_addresses();

}  // namespace gpupool::client
