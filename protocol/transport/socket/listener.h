// Base of listeners on stream sockets (tcp, tls, rdma, shm). One thread accepts; any thread may call close(),
// which ends a waiting accept().
#pragma once
#include <atomic>
#include <memory>

#include "protocol/transport/transport.h"

namespace gpupool::transport {

class SocketListener : public Listener {
 public:
  using Adopt = Result<std::unique_ptr<Connection>> (*)(int descriptor, const Options& options);

  // Takes over both descriptors.
  SocketListener(int socket, int wake, Endpoint endpoint, const Options& options, Adopt adopt);
  ~SocketListener() override;
  SocketListener(const SocketListener&) = delete;
  SocketListener& operator=(const SocketListener&) = delete;

  Result<std::unique_ptr<Connection>> accept(Deadline deadline) override;
  Endpoint endpoint() const override { return endpoint_; }
  int descriptor() const override { return socket_; }
  void close() override;

 private:
  const int socket_;
  const int wake_;
  const Endpoint endpoint_;
  const Options options_;
  const Adopt adopt_;
  std::atomic<bool> closed_{false};
};

// Makes the `wake` of a listener for this socket; closes the socket on failure.
Result<int> make_wake(int socket, const Endpoint& endpoint);
// Takes over a listening socket with its endpoint; closes it on failure.
Result<std::unique_ptr<Listener>> take_over_listener(int socket, const Endpoint& endpoint,
                                                     const Options& options, SocketListener::Adopt adopt);

constexpr int kBacklog = 4096;  // enough for the connections that poold accepts within a second
Error cannot_listen(const Endpoint& endpoint, const std::string& why, const std::string& advice);

}  // namespace gpupool::transport
