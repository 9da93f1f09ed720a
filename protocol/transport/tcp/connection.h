// The tcp transport's connection, and the base of tls connections. A peer whose machine or network is gone is
// noticed by the kernel's count of unanswered packets. Threads and errors as in transport.h.
#pragma once
#include "protocol/transport/socket/connection.h"

namespace gpupool::transport::tcp {

class TcpConnection : public SocketConnection {
 public:
  using SocketConnection::SocketConnection;

 private:
  bool peer_is_gone(std::chrono::milliseconds timeout) const override;
};

Result<std::unique_ptr<Connection>> connect(const Endpoint& endpoint, const Options& options);
Result<std::unique_ptr<Connection>> adopt(int descriptor, const Options& options);

}  // namespace gpupool::transport::tcp
