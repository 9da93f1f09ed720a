#include "protocol/transport/rdma_backend.h"
#include "rdma/connection.h"

namespace gpupool::transport::rdma {

Result<std::unique_ptr<Connection>> connect(const Endpoint& endpoint, const Options& options) {
  auto plain = tcp::connect(endpoint, options);
  if (!plain || (*plain)->shares_memory()) return plain;
  return adopt((*plain)->release_descriptor(), options);
}

}  // namespace gpupool::transport::rdma
