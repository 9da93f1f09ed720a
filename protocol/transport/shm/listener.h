// Listens on a Unix socket. A socket file is removed when the listener closes, and one left behind by a
// killed poold is replaced. Threads and errors as in socket/listener.h.
#pragma once
#include "protocol/transport/transport.h"

namespace gpupool::transport::shm {

Result<std::unique_ptr<Listener>> listen(const Endpoint& endpoint, const Options& options);
// As in transport.h.
Result<std::unique_ptr<Listener>> take_over(int socket, const Endpoint& endpoint, const Options& options);

}  // namespace gpupool::transport::shm
