// Exact reads and writes on the connection of a client that poold itself serves, through TLS if the
// connection uses it. Monitors and Checkpoints use it.
//
// poold's thread, which never accepts a descriptor from the client. One read and one write at a time. A
// handler must keep alive what it uses; none is called after close().
#pragma once
#include <asio/posix/stream_descriptor.hpp>
#include <functional>
#include <memory>
#include <span>

#include "protocol/transport/tls/stream.h"

namespace gpupool::server {

class ByteStream {
 public:
  using Then = std::function<void(bool done)>;  // false: the connection has ended or broken

  // Takes ownership of the descriptor. `tls` may be null.
  ByteStream(asio::io_context& context, int descriptor, std::shared_ptr<transport::tls::Stream> tls);
  ~ByteStream() { close(); }

  void read(std::span<std::byte> buffer, Then then);
  void write(std::span<const std::byte> bytes, Then then);
  // Calls `then` once there are bytes to read or the peer has closed the connection. A read() may begin
  // meanwhile.
  void await_readable(std::function<void()> then);
  void close();

 private:
  void read_tls(std::span<std::byte> rest, Then then);
  void write_tls(std::span<const std::byte> rest, Then then);
  void await_tls(std::function<void()> then);

  asio::posix::stream_descriptor stream_;
  const std::shared_ptr<transport::tls::Stream> tls_;
};

}  // namespace gpupool::server
