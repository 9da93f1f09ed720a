// How programs that start a daemon learn on which port it listens.
#pragma once
#include <cstdint>
#include <string>

#include "protocol/wire/result.h"

namespace gpupool::server {

// Under its name there is always a whole file or none.
Result<void> write_port_file(const std::string& path, uint16_t port);

}  // namespace gpupool::server
