// Listens on a TCP address. Threads and errors as in socket/listener.h.
#pragma once
#include "protocol/transport/socket/listener.h"
#include "protocol/transport/transport.h"

namespace gpupool::transport::tcp {

Result<std::unique_ptr<Listener>> listen(const Endpoint& endpoint, const Options& options);
// For transports whose connections begin as TCP (tls, rdma): `adopt` makes the connection of an accepted
// socket.
Result<std::unique_ptr<Listener>> listen_for(const Endpoint& endpoint, const Options& options,
                                             SocketListener::Adopt adopt);

}  // namespace gpupool::transport::tcp
