#include "rdma/listener.h"

#include "protocol/transport/tcp/listener.h"
#include "rdma/connection.h"

namespace gpupool::transport::rdma {

Result<std::unique_ptr<Listener>> listen(const Endpoint& endpoint, const Options& options) {
  return tcp::listen_for(endpoint, options, adopt);
}

}  // namespace gpupool::transport::rdma
