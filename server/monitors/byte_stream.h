// Exact reads and writes on a client's connection that poold keeps, through TLS where there is some.
//
// poold's one thread, which never takes a descriptor that the client sends. One read and one write at a time. Handlers keep what they need alive; none is called after close().
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

  // Takes over the descriptor. `tls`: null where there is none.
  ByteStream(asio::io_context& context, int descriptor, std::shared_ptr<transport::tls::Stream> tls);
  ~ByteStream() { close(); }

  void read(std::span<std::byte> buffer, Then then);
  void write(std::span<const std::byte> bytes, Then then);
  // Calls `then` once there are bytes to read, or the other side has ended the connection. A read() may begin meanwhile.
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
