// A connection whose other end is the test: it records the sent bytes, delivers fed bytes, and limits room
// and injects errors as the test says. Thread-safe.
#pragma once
#include <chrono>
#include <condition_variable>
#include <cstring>
#include <mutex>
#include <optional>
#include <span>
#include <thread>
#include <vector>

#include "protocol/transport/transport.h"

namespace gpupool::client::test {

class MemoryConnection final : public transport::Connection {
 public:
  static constexpr size_t kUnlimited = SIZE_MAX;

  // The bytes that the client has sent so far.
  std::vector<std::byte> sent() const {
    const std::lock_guard lock(mutex_);
    return sent_;
  }
  size_t sends() const {
    const std::lock_guard lock(mutex_);
    return sends_;
  }
  // The number of fed bytes that the client has not received.
  size_t unread() const {
    const std::lock_guard lock(mutex_);
    return fed_.size();
  }
  // Makes room for `bytes` more bytes, at most `at_once` of them per call.
  void set_room(size_t bytes, size_t at_once = kUnlimited) {
    const std::lock_guard lock(mutex_);
    room_ = bytes;
    at_once_ = at_once;
    changed_.notify_all();
  }
  // Makes sends and receives fail; fed bytes can still be read.
  void fail(Error error) {
    const std::lock_guard lock(mutex_);
    error_ = std::move(error);
    changed_.notify_all();
  }
  template <class T>
  void feed(const T& value) {
    feed_bytes(std::as_bytes(std::span(&value, 1)));
  }
  void feed_bytes(std::span<const std::byte> bytes) {
    const std::lock_guard lock(mutex_);
    fed_.insert(fed_.end(), bytes.begin(), bytes.end());
    changed_.notify_all();
  }
  // Delays the return of the next wait that reaches its deadline, as if the program had been stopped
  // meanwhile.
  void oversleep(std::chrono::milliseconds time) {
    const std::lock_guard lock(mutex_);
    oversleep_ = time;
  }
  // Limits the bytes returned by one receive call.
  void receive_at_most(size_t bytes) {
    const std::lock_guard lock(mutex_);
    most_received_ = bytes;
  }

  Result<size_t> send_some(std::span<const iovec> buffers) override {
    const std::lock_guard lock(mutex_);
    if (error_) return *error_;
    ++sends_;
    size_t left = std::min(room_, at_once_), taken = 0;
    for (const iovec& buffer : buffers) {
      const size_t part = std::min(left, buffer.iov_len);
      const auto* const bytes = static_cast<const std::byte*>(buffer.iov_base);
      sent_.insert(sent_.end(), bytes, bytes + part);
      left -= part, taken += part;
    }
    if (room_ != kUnlimited) room_ -= taken;
    return taken;
  }
  Result<size_t> receive_some(std::span<std::byte> buffer) override {
    const std::lock_guard lock(mutex_);
    const size_t size = std::min({buffer.size(), fed_.size(), most_received_});
    if (size == 0 && error_) return *error_;
    if (size != 0) std::memcpy(buffer.data(), fed_.data(), size);
    fed_.erase(fed_.begin(), fed_.begin() + static_cast<ptrdiff_t>(size));
    return size;
  }
  Result<Ready> wait(bool for_receive, bool for_send, transport::Deadline deadline) override {
    std::unique_lock lock(mutex_);
    const auto can_receive = [&] { return for_receive && (!fed_.empty() || error_); };
    const auto can_send = [&] { return for_send && (room_ != 0 || error_); };
    const auto interrupted = [&] { return (for_receive || !for_send) && interrupted_; };
    const auto ready = [&] { return interrupted() || can_receive() || can_send(); };
    if (deadline)
      changed_.wait_until(lock, *deadline, ready);
    else
      changed_.wait(lock, ready);
    if (interrupted()) return interrupted_ = false, Ready::none;
    if (!can_receive() && !can_send()) std::this_thread::sleep_for(std::exchange(oversleep_, {}));
    if (can_receive() && can_send()) return Ready::both;
    return can_receive() ? Ready::receive : can_send() ? Ready::send : Ready::none;
  }
  void interrupt() override {
    const std::lock_guard lock(mutex_);
    interrupted_ = true;
    changed_.notify_all();
  }
  void close() override { fail({ErrorCode::closed, "closed"}); }
  std::string peer() const override { return "the test"; }
  int release_descriptor() override { return -1; }

 private:
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<std::byte> sent_, fed_;
  size_t sends_ = 0, room_ = kUnlimited, at_once_ = kUnlimited, most_received_ = kUnlimited;
  std::optional<Error> error_;
  bool interrupted_ = false;
  std::chrono::milliseconds oversleep_{0};
};

}  // namespace gpupool::client::test
