// Listens on a Unix socket. One on a path is removed again when the listener closes, and one that a poold left behind
// when it was killed is replaced.
#pragma once
#include "protocol/transport/transport.h"

namespace gpupool::transport::shm {

Result<std::unique_ptr<Listener>> listen(const Endpoint& endpoint, const Options& options);

}  // namespace gpupool::transport::shm
