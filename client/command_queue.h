// The sending half of a session: one ordered stream of commands from all threads of the process.
//
// append() puts a command into the current batch and returns; the batch is sent by whoever waits next, when it is full,
// or by a flusher thread that sends while the socket is idle: no delay when little happens, one system call for many
// commands when much does. Lock order: send_mutex_, then mutex_. Any thread.
#pragma once
#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <mutex>
#include <span>

#include "client/trace.h"
#include "protocol/transport/transport.h"
#include "protocol/wire/frame.h"
#include "protocol/wire/writer.h"

namespace gpupool::client {

class CommandQueue {
 public:
  static constexpr const char* kThreadName = "gpupool-flusher";

  struct Hooks {
    std::function<bool(transport::Deadline)> wait_for_room;  // false: no room in time, or the session failed
    std::function<void(Error)> failed;
  };
  CommandQueue(transport::Connection& connection, std::chrono::milliseconds dead_peer_timeout, Hooks hooks);

  // `write_body(writer)` appends the body; `before_sending(sequence)` runs before the command can reach the server.
  template <class WriteBody, class BeforeSending>
  void append(uint16_t id, uint16_t flags, uint64_t context, WriteBody&& write_body, BeforeSending&& before_sending) {
    const trace::Timer timer;
    size_t batch = 0, bytes = 0;
    {
      std::lock_guard lock(mutex_);
      const size_t at = begin_command(pending_);
      wire::Writer writer(pending_);
      write_body(writer);
      before_sending(end_command(pending_, at, id, flags, context, 0));
      batch = pending_.size();
      bytes = batch - at;
      pending_bytes_.store(batch, std::memory_order_seq_cst);
    }
    if (batch > kBatchLimit) flush();
    else if (!(flags & wire::kWantsReply)) wake_flusher();
    if (timer) [[unlikely]] trace::count_call(id, bytes, timer.passed());
  }

  // A command whose body is `head` followed by `payload`, sent at once straight from the caller's memory.
  template <class Head, class BeforeSending>
  bool send_bulk(uint16_t id, uint16_t flags, uint64_t context, const Head& head, std::span<const iovec> payload,
                 BeforeSending&& before_sending) {
    const trace::Timer timer;
    std::lock_guard sending(send_mutex_);
    size_t bytes = 0;
    {
      std::lock_guard lock(mutex_);
      take_batch();
      const size_t at = begin_command(sending_);
      wire::Writer(sending_).put(head);
      for (const iovec& part : payload) bytes += part.iov_len;
      before_sending(end_command(sending_, at, id, flags, context, bytes));
      bytes += sending_.size() - at;
    }
    const bool sent = send(payload);
    if (timer) [[unlikely]] trace::count_call(id, bytes, timer.passed());
    return sent;
  }

  // Sends everything appended before the call.
  bool flush();
  // The same, but gives up when another thread is sending.
  void try_flush();
  // Makes sure that what was appended is sent soon.
  void wake_flusher();

 private:
  static constexpr size_t kBatchLimit = 512 * 1024;  // then the appending thread sends: back-pressure

  static size_t begin_command(wire::Buffer& buffer);
  uint64_t end_command(wire::Buffer& buffer, size_t at, uint16_t id, uint16_t flags, uint64_t context, size_t payload);
  void take_batch();                           // both locks held
  bool send(std::span<const iovec> payload);   // sending_, then payload; send_mutex_ held
  void run_flusher();

  transport::Connection& connection_;
  const std::chrono::milliseconds dead_peer_timeout_;
  const Hooks hooks_;

  std::mutex send_mutex_;
  wire::Buffer sending_;
  bool failed_ = false;

  // Lines of their own: the flusher looks at the count while threads append.
  alignas(64) std::mutex mutex_;
  wire::Buffer pending_;
  uint64_t sequence_ = 0;

  alignas(64) std::atomic<size_t> pending_bytes_{0};
  enum FlusherState : uint32_t { kNotStarted, kAwake, kAsleep };
  std::atomic<uint32_t> flusher_{kNotStarted};
};

}  // namespace gpupool::client
