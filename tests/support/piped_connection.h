// A connection that delivers the bytes that a test adds to its pipe, for tests that play a peer byte by byte.
// Any thread.
#pragma once
#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <cstring>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <utility>

#include "protocol/transport/transport.h"

namespace gpupool::testing {

// One direction of a connection.
class Pipe {
 public:
  void add(std::string_view bytes) {
    const std::lock_guard lock(mutex_);
    bytes_.append(bytes);
    changed_.notify_all();
  }
  void close() {
    const std::lock_guard lock(mutex_);
    closed_ = true;
    changed_.notify_all();
  }
  Result<size_t> take(std::span<std::byte> buffer) {
    const std::lock_guard lock(mutex_);
    const size_t part = std::min(buffer.size(), bytes_.size() - at_);
    if (part == 0 && closed_) return Error{ErrorCode::closed, "closed"};
    if (part != 0) std::memcpy(buffer.data(), bytes_.data() + at_, part);
    at_ += part;
    if (at_ == bytes_.size()) changed_.notify_all();
    return part;
  }
  // Until there are bytes, it is closed or interrupted.
  void await() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [this] { return at_ != bytes_.size() || closed_ || interrupted_; });
    interrupted_ = false;
  }
  // Until all bytes have been taken, it is closed, or `longest` has passed.
  void await_taken(std::chrono::milliseconds longest) {
    std::unique_lock lock(mutex_);
    changed_.wait_for(lock, longest, [this] { return at_ == bytes_.size() || closed_; });
  }
  void interrupt() {
    const std::lock_guard lock(mutex_);
    interrupted_ = true;
    changed_.notify_all();
  }
  bool closed() {
    const std::lock_guard lock(mutex_);
    return closed_;
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::string bytes_;
  size_t at_ = 0;
  bool closed_ = false, interrupted_ = false;
};

// Receives from a pipe, and discards what is sent.
class PipedConnection final : public transport::Connection {
 public:
  explicit PipedConnection(std::shared_ptr<Pipe> pipe) : pipe_(std::move(pipe)) {}
  Result<size_t> send_some(std::span<const iovec> buffers) override {
    if (pipe_->closed()) return Error{ErrorCode::closed, "closed"};
    size_t count = 0;
    for (const iovec& buffer : buffers) count += buffer.iov_len;
    return count;
  }
  Result<size_t> receive_some(std::span<std::byte> buffer) override { return pipe_->take(buffer); }
  Result<Ready> wait(bool for_receive, bool for_send, transport::Deadline) override {
    if (for_send) return for_receive ? Ready::both : Ready::send;
    pipe_->await();
    return Ready::receive;
  }
  void interrupt() override { pipe_->interrupt(); }
  void close() override { pipe_->close(); }
  std::string peer() const override { return "the fuzzer"; }
  int release_descriptor() override { return -1; }

 private:
  const std::shared_ptr<Pipe> pipe_;
};

}  // namespace gpupool::testing
