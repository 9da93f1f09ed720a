#pragma once
#include "protocol/transport/transport.h"

namespace gpupool::transport::tcp {

Result<std::unique_ptr<Listener>> listen(const Endpoint& endpoint, const Options& options);

}  // namespace gpupool::transport::tcp
