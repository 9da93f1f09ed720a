// A connection that records what is sent, and receives nothing. One thread.
#pragma once
#include <string>

#include "protocol/transport/transport.h"

namespace gpupool::testing {

class RecordingConnection : public transport::Connection {
 public:
  std::string bytes;

  Result<size_t> send_some(std::span<const iovec> buffers) override {
    const size_t before = bytes.size();
    for (const iovec& buffer : buffers)
      bytes.append(static_cast<const char*>(buffer.iov_base), buffer.iov_len);
    return bytes.size() - before;
  }
  Result<size_t> receive_some(std::span<std::byte>) override { return size_t{0}; }
  Result<Ready> wait(bool, bool, transport::Deadline) override { return Ready::both; }
  void interrupt() override {}
  void close() override {}
  std::string peer() const override { return "recorder"; }
  int release_descriptor() override { return -1; }
};

}  // namespace gpupool::testing
