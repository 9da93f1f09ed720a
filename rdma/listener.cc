// Listens for rdma connections on a TCP port, since they begin as tcp connections (connection.h). Threads and
// errors as in protocol/transport/socket/listener.h.
#include "protocol/transport/tcp/listener.h"

#include "protocol/transport/rdma_backend.h"
#include "rdma/connection.h"

namespace gpupool::transport::rdma {

Result<std::unique_ptr<Listener>> listen(const Endpoint& endpoint, const Options& options) {
  return tcp::listen_for(endpoint, options, adopt);
}

}  // namespace gpupool::transport::rdma
