// The connection of a session's source to its target, for tests of the target. Any one thread.
#pragma once
#include <string>
#include <string_view>

#include "protocol/transport/transport.h"
#include "tests/fuzz/played_connection.h"

namespace gpupool::worker::test {

// Plays a stream, and keeps the answer.
class PlayedSource final : public transport::Connection {
 public:
  PlayedSource(std::string_view stream, std::string& answer)
      : played_(std::as_bytes(std::span(stream)), true), answer_(answer) {}
  Result<size_t> send_some(std::span<const iovec> buffers) override {
    for (const iovec& buffer : buffers)
      answer_.append(static_cast<const char*>(buffer.iov_base), buffer.iov_len);
    return played_.send_some(buffers);
  }
  Result<size_t> receive_some(std::span<std::byte> buffer) override { return played_.receive_some(buffer); }
  Result<Ready> wait(bool receive, bool send, transport::Deadline deadline) override {
    return played_.wait(receive, send, deadline);
  }
  void interrupt() override {}
  void close() override {}
  std::string peer() const override { return "the source"; }
  int release_descriptor() override { return -1; }

 private:
  fuzz::PlayedConnection played_;
  std::string& answer_;
};

}  // namespace gpupool::worker::test
