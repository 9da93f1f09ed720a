// A connection that delivers an input and discards what is sent: for fuzzing a client's decoders of a
// server's messages.
#pragma once
#include <algorithm>
#include <cstring>
#include <span>
#include <string>

#include "protocol/transport/transport.h"

namespace gpupool::fuzz {

class PlayedConnection final : public transport::Connection {
 public:
  // `takes`: discards sent bytes; otherwise there is never room to send.
  PlayedConnection(std::span<const std::byte> input, bool takes) : rest_(input), takes_(takes) {}
  Result<size_t> send_some(std::span<const iovec> buffers) override {
    size_t count = 0;
    for (const iovec& buffer : buffers) count += buffer.iov_len;
    return takes_ ? count : size_t{0};
  }
  Result<size_t> receive_some(std::span<std::byte> buffer) override {
    if (rest_.empty()) return Error{ErrorCode::closed, "the input is over"};
    const size_t count = std::min({buffer.size(), rest_.size(), size_t{1000}});
    std::memcpy(buffer.data(), rest_.data(), count);
    rest_ = rest_.subspan(count);
    return count;
  }
  Result<Ready> wait(bool, bool, transport::Deadline) override { return Ready::receive; }
  void interrupt() override {}
  void close() override {}
  std::string peer() const override { return "the fuzzer"; }
  int release_descriptor() override { return -1; }
  std::span<const std::byte> rest() const { return rest_; }

 private:
  std::span<const std::byte> rest_;
  const bool takes_;
};

}  // namespace gpupool::fuzz
