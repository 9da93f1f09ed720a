// Base of connections over stream sockets (tcp, tls, shm): a non-blocking socket, and an eventfd for
// interrupt(). Threads as in transport.h. Raises no signals, throws nothing.
//
// close() shuts the socket down but leaves the descriptor open until destruction, so that a thread inside
// wait() never uses a descriptor number that the program has reused. A live peer that does not read may block
// its sender indefinitely. A peer whose machine or network is gone is noticed inside wait() if the transport
// overrides peer_is_gone().
#pragma once
#include <atomic>
#include <memory>
#include <string>

#include "protocol/transport/transport.h"

namespace gpupool::transport {

// True if this errno means ErrorCode::reset.
bool is_reset(int error);

class SocketConnection : public Connection {
 public:
  // Takes over both descriptors.
  SocketConnection(int socket, int wake, std::string peer, const Options& options);
  ~SocketConnection() override;
  SocketConnection(const SocketConnection&) = delete;
  SocketConnection& operator=(const SocketConnection&) = delete;

  Result<size_t> send_some(std::span<const iovec> buffers) override;
  Result<size_t> receive_some(std::span<std::byte> buffer) override;
  Result<Ready> wait(bool for_receive, bool for_send, Deadline deadline) override;
  bool wait_for_end() override;
  void interrupt() override;
  void close() override;
  std::string peer() const override { return peer_; }
  int release_descriptor() override;

 protected:
  int socket() const { return socket_; }
  // What wait() polls for an interrupt: -1 if it waits only to send.
  int wake(bool for_receive, bool for_send) const { return for_receive || !for_send ? wake_ : -1; }
  bool closed() const { return closed_.load(std::memory_order_acquire); }
  bool take_interrupt();
  Error failure(int error, const char* doing) const;
  // True if the peer's machine has been silent for this long although it owes an acknowledgement.
  virtual bool peer_is_gone(std::chrono::milliseconds) const { return false; }

 private:
  int socket_;
  int wake_;
  const std::string peer_;
  const std::chrono::milliseconds dead_peer_timeout_;
  std::atomic<bool> closed_{false};
};

// Makes the descriptor non-blocking and close-on-exec. False on failure, with errno.
bool prepare_socket(int descriptor);
// Closes a descriptor that cannot be adopted, and returns the error.
Error refuse_descriptor(int descriptor, ErrorCode code, const std::string& doing, int error);

}  // namespace gpupool::transport
