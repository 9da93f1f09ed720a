// The addresses at which this process has memory, for servers: a variable of a module that their driver places there could not be mirrored.
#pragma once
#include <vector>

#include "protocol/wire/commands.h"

namespace gpupool::client {

// A few large ranges, with room around the memory for what the program maps next. Reads /proc/self/maps; empty where that fails.
std::vector<wire::AddressRange> busy_addresses();

}  // namespace gpupool::client
