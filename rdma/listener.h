// Listens for rdma connections on a TCP port, since they begin as tcp connections (connection.h). Threads and
// errors as in protocol/transport/socket/listener.h.
#pragma once
#include "protocol/transport/transport.h"

namespace gpupool::transport::rdma {

Result<std::unique_ptr<Listener>> listen(const Endpoint& endpoint, const Options& options);

}  // namespace gpupool::transport::rdma
