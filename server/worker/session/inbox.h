// The receiving side of a session: decodes command frames in the receive buffer. Executor's thread only.
//
// next() returns one header. The caller must then consume the body exactly once: with body() as a whole
// (valid until the next call), or in pieces with body() and read_into(), which receives a long payload
// directly into its destination.
#pragma once
#include <atomic>
#include <cstddef>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>

#include "protocol/transport/transport.h"
#include "protocol/wire/frame.h"
#include "protocol/wire/reader.h"

namespace gpupool::worker {

class Inbox {
 public:
  // Called before the thread sleeps because there is no input. Returns the longest time to sleep; nullopt:
  // until input arrives.
  using Idle = std::function<std::optional<std::chrono::microseconds>()>;

  // Adds the number of received bytes to `bytes`.
  Inbox(transport::Connection& connection, std::atomic<uint64_t>& bytes, Idle idle);

  Result<wire::CommandHeader> next();
  Result<std::span<const std::byte>> body(size_t size);
  Result<void> read_into(std::span<std::byte> destination);
  size_t body_left() const { return body_left_; }
  // Until end_replay(), body() and read_into() return data of a body that was received earlier.
  void replay(wire::Reader body);
  void end_replay();
  // True if the buffer holds unread bytes.
  bool has_input() const { return end_ != begin_; }

 private:
  Result<void> fill(size_t wanted);              // receives until the buffer holds `wanted` bytes
  Result<size_t> receive(std::span<std::byte>);  // waits for at least one byte
  Result<size_t> receive_some(std::span<std::byte>);

  transport::Connection& connection_;
  std::atomic<uint64_t>& bytes_;
  Idle idle_;
  std::unique_ptr<std::byte[]> buffer_;
  size_t capacity_;
  size_t begin_ = 0;
  size_t end_ = 0;
  size_t body_left_ = 0;
  std::optional<wire::Reader> replayed_;
  size_t left_before_replay_ = 0;
  bool recently_busy_ = false;
};

}  // namespace gpupool::worker
