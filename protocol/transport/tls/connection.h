// The tls transport's connection: TCP's, with TLS 1.3 inside (stream.h). A client's goes from the one with poold to the one with the
// worker when poold ends the first; a worker's begins with the second, by the secret in TlsOptions.
//
// Sending and receiving on two threads take turns, record by record: an SSL object is one thread's at a time.
#pragma once
#include <memory>
#include <mutex>

#include "protocol/transport/tcp/connection.h"
#include "protocol/transport/tls/stream.h"

namespace gpupool::transport::tls {

class TlsConnection final : public tcp::TcpConnection {
 public:
  TlsConnection(int socket, int wake, std::string peer, const Options& options, std::unique_ptr<Stream> stream, bool with_worker);

  Result<size_t> send_some(std::span<const iovec> buffers) override;
  Result<size_t> receive_some(std::span<std::byte> buffer) override;
  Result<Ready> wait(bool for_receive, bool for_send, Deadline deadline) override;
  void close() override;
  Result<void> upgrade(Side side, Deadline deadline) override;
  std::string carrier() const override;

 private:
  Result<size_t> receive_once(std::span<std::byte> buffer);
  Result<void> go_on_with_worker();
  Error name_peer(const Error& error) const;

  mutable std::mutex mutex_;  // for both
  std::unique_ptr<Stream> stream_;
  bool with_worker_;
  std::optional<Error> ended_;  // the receiver's: after what was received before it
  // The sender's: bytes of a record that has been begun. They are at the front of what the caller sends next, too.
  std::vector<std::byte> begun_;
  size_t ahead_ = 0;  // bytes of the caller's next list that have been sent already
};

Result<std::unique_ptr<Connection>> connect(const Endpoint& endpoint, const Options& options);
// By options.tls.secret.
Result<std::unique_ptr<Connection>> adopt(int descriptor, const Options& options);
// Its connections have no TLS yet: poold takes their descriptors, opens a Stream, and hands them to workers that adopt them.
Result<std::unique_ptr<Listener>> listen(const Endpoint& endpoint, const Options& options);

}  // namespace gpupool::transport::tls
