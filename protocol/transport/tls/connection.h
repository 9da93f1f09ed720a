// The tls transport's connection: TLS 1.3 over TCP (stream.h). A client's connection has two streams in turn,
// with poold and then with the worker; it switches when poold ends the first. A worker's connection has the
// second one only, with TlsOptions::secret as its key. Errors as in transport.h.
//
// One thread may send while another receives. They take turns, record by record, because an SSL object may be
// used by one thread at a time.
#pragma once
#include <memory>
#include <mutex>

#include "protocol/transport/tcp/connection.h"
#include "protocol/transport/tls/stream.h"

namespace gpupool::transport::tls {

class TlsConnection final : public tcp::TcpConnection {
 public:
  TlsConnection(int socket, int wake, std::string peer, const Options& options,
                std::unique_ptr<Stream> stream, bool with_worker);

  Result<size_t> send_some(std::span<const iovec> buffers) override;
  Result<size_t> receive_some(std::span<std::byte> buffer) override;
  Result<Ready> wait(bool for_receive, bool for_send, Deadline deadline) override;
  void close() override;
  Result<void> upgrade(Side side, Deadline deadline) override;
  std::string carrier() const override;

 private:
  Result<size_t> receive_once(std::span<std::byte> buffer);
  Result<void> switch_to_worker_stream();
  Error name_peer(const Error& error) const;

  mutable std::mutex mutex_;  // guards stream_ and with_worker_
  std::unique_ptr<Stream> stream_;
  bool with_worker_;
  std::optional<Error> ended_;  // the receiver's: returned once all earlier bytes are delivered
  // The sender's: the rest of a record that OpenSSL has begun. The caller's next list starts with the same
  // bytes.
  std::vector<std::byte> partial_record_;
  size_t already_sent_ = 0;  // bytes at the front of the caller's next list that have been sent already
};

Result<std::unique_ptr<Connection>> connect(const Endpoint& endpoint, const Options& options);
// Takes over a worker's connection, whose key is options.tls.secret.
Result<std::unique_ptr<Connection>> adopt(int descriptor, const Options& options);
// Accepted connections are plain tcp: poold takes their descriptors, opens a Stream on each, and passes them
// to workers, which adopt them.
Result<std::unique_ptr<Listener>> listen(const Endpoint& endpoint, const Options& options);

}  // namespace gpupool::transport::tls
