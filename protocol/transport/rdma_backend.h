// The rdma transport's row in the table of transports. The functions are defined in rdma/, which is plugged
// in from outside: nothing in protocol/ includes its headers. Threads and errors as in transport.h.
#pragma once
#include <memory>

#include "protocol/transport/transport.h"

namespace gpupool::transport::rdma {

Result<std::unique_ptr<Connection>> connect(const Endpoint& endpoint, const Options& options);
Result<std::unique_ptr<Listener>> listen(const Endpoint& endpoint, const Options& options);
Result<std::unique_ptr<Connection>> adopt(int descriptor, const Options& options);

}  // namespace gpupool::transport::rdma
