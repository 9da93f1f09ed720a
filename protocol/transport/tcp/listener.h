#pragma once
#include "protocol/transport/socket/listener.h"
#include "protocol/transport/transport.h"

namespace gpupool::transport::tcp {

Result<std::unique_ptr<Listener>> listen(const Endpoint& endpoint, const Options& options);
// For a transport whose connections begin as TCP's.
Result<std::unique_ptr<Listener>> listen_for(const Endpoint& endpoint, const Options& options, SocketListener::Adopt adopt);

}  // namespace gpupool::transport::tcp
