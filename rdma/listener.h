#pragma once
#include "protocol/transport/transport.h"

namespace gpupool::transport::rdma {

// On a TCP port: connections begin there.
Result<std::unique_ptr<Listener>> listen(const Endpoint& endpoint, const Options& options);

}  // namespace gpupool::transport::rdma
