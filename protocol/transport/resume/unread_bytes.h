// The rest of a broken carrier, for ResumableConnection. Not thread-safe.
#pragma once
#include <algorithm>
#include <cstddef>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "protocol/transport/transport.h"

namespace gpupool::transport {

// Whether another carrier can help: not after a violation of the protocol, or a local mistake.
inline bool is_break(const Error& error) {
  return error.code == ErrorCode::lost || error.code == ErrorCode::reset || error.code == ErrorCode::closed ||
         error.code == ErrorCode::unavailable;
}

// A carrier that holds the bytes which a broken one still had for the receiver, and ends behind them.
class UnreadBytes final : public Connection {
 public:
  static constexpr size_t kMost = 64u << 20;  // the largest ring; the peer may still write to it

  // Takes everything out of `broken`.
  explicit UnreadBytes(Connection& broken) {
    std::vector<std::byte> piece(64 * 1024);
    while (bytes_.size() <= kMost) {
      const auto received = broken.receive_some(piece);
      if (!received && !is_break(received.error())) error_ = received.error();
      if (!received || *received == 0) return;
      bytes_.insert(bytes_.end(), piece.begin(), piece.begin() + static_cast<ptrdiff_t>(*received));
    }
    error_ = Error{ErrorCode::malformed, broken.peer() + " sends on a connection that it has left"};
  }
  const std::optional<Error>& error() const { return error_; }
  bool empty() const { return at_ == bytes_.size(); }

  Result<size_t> send_some(std::span<const iovec>) override { return over(); }
  Result<size_t> receive_some(std::span<std::byte> buffer) override {
    if (empty()) return over();
    const size_t step = std::min(buffer.size(), bytes_.size() - at_);
    std::copy_n(bytes_.begin() + static_cast<ptrdiff_t>(at_), step, buffer.begin());
    at_ += step;
    return step;
  }
  Result<Ready> wait(bool, bool, Deadline) override { return Ready::receive; }
  void interrupt() override {}
  void close() override {}
  std::string peer() const override { return "a broken connection"; }
  int release_descriptor() override { return -1; }

 private:
  static Error over() { return {ErrorCode::closed, "the rest of a broken connection was read"}; }

  std::vector<std::byte> bytes_;
  size_t at_ = 0;
  std::optional<Error> error_;
};

}  // namespace gpupool::transport
