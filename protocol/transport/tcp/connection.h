// The tcp transport's connection: a native non-blocking socket, an eventfd for interrupt().
//
// Raises no signals and throws nothing. close() shuts the socket down but leaves the descriptor open until
// destruction, so that a thread inside wait() never touches a number that the program has reused. A peer that
// is alive but does not read may stall for ever; one whose machine or network is gone is noticed inside
// wait() (see peer_is_gone).
#pragma once
#include <atomic>
#include <memory>
#include <string>

#include "protocol/transport/transport.h"

namespace gpupool::transport::tcp {

class TcpConnection final : public Connection {
 public:
  // Takes over both descriptors.
  TcpConnection(int socket, int wake, std::string peer, const Options& options);
  ~TcpConnection() override;
  TcpConnection(const TcpConnection&) = delete;
  TcpConnection& operator=(const TcpConnection&) = delete;

  Result<size_t> send_some(std::span<const iovec> buffers) override;
  Result<size_t> receive_some(std::span<std::byte> buffer) override;
  Result<Ready> wait(bool for_receive, bool for_send, Deadline deadline) override;
  void interrupt() override;
  void close() override;
  std::string peer() const override { return peer_; }
  int release_descriptor() override;

 private:
  bool take_interrupt();
  bool peer_is_gone() const;
  Error failure(int error, const char* doing) const;

  int socket_;
  int wake_;
  const std::string peer_;
  const std::chrono::milliseconds dead_peer_timeout_;
  std::atomic<bool> closed_{false};
};

Result<std::unique_ptr<Connection>> connect(const Endpoint& endpoint, const Options& options);
Result<std::unique_ptr<Connection>> adopt(int descriptor, const Options& options);

}  // namespace gpupool::transport::tcp
