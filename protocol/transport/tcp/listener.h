// The tcp transport's listener. One thread accepts; close() may come from any thread and ends a waiting
// accept().
#pragma once
#include <atomic>
#include <memory>

#include "protocol/transport/transport.h"

namespace gpupool::transport::tcp {

class TcpListener final : public Listener {
 public:
  // Takes over both descriptors.
  TcpListener(int socket, int wake, Endpoint endpoint, const Options& options);
  ~TcpListener() override;
  TcpListener(const TcpListener&) = delete;
  TcpListener& operator=(const TcpListener&) = delete;

  Result<std::unique_ptr<Connection>> accept(Deadline deadline) override;
  Endpoint endpoint() const override { return endpoint_; }
  int descriptor() const override { return socket_; }
  void close() override;

 private:
  const int socket_;
  const int wake_;
  const Endpoint endpoint_;
  const Options options_;
  std::atomic<bool> closed_{false};
};

Result<std::unique_ptr<Listener>> listen(const Endpoint& endpoint, const Options& options);

}  // namespace gpupool::transport::tcp
