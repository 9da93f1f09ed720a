// The receiving side of a session: frames are decoded where they were received. The executor's thread alone uses it.
//
// next() gives one header at a time; its body is then taken exactly once, by body() as one piece (valid until the next
// call), or piece by piece with body() and read_into(), which receives a long payload straight into its place.
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
  // Called before the thread sleeps for want of input; how long it may sleep at most (nullopt: until input comes).
  using Idle = std::function<std::optional<std::chrono::microseconds>()>;

  // What is received is added to `bytes`.
  Inbox(transport::Connection& connection, std::atomic<uint64_t>& bytes, Idle idle);

  Result<wire::CommandHeader> next();
  Result<std::span<const std::byte>> body(size_t size);
  Result<void> read_into(std::span<std::byte> destination);
  size_t body_left() const { return body_left_; }
  // Until end_replay(), body() and read_into() take from a body that was received before.
  void replay(wire::Reader body);
  void end_replay();
  // True when more of the client's bytes lie here already.
  bool has_input() const { return end_ != begin_; }

 private:
  Result<void> fill(size_t wanted);              // until `wanted` bytes lie in the buffer
  Result<size_t> receive(std::span<std::byte>);  // at least one byte; waits
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
