// The sending half of a session: one ordered command stream from all threads of the process.
//
// append() adds a command to the current batch and returns. The batch is sent by the next thread that waits,
// by the appending thread when the batch is full, or by a flusher thread while the socket is idle: no delay
// under light load, one system call for many commands under heavy load. A send error fails the session
// (Hooks::failed). Lock order: send_mutex_, then mutex_. Thread-safe.
#pragma once
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <mutex>
#include <optional>
#include <span>

#include "client/process/trace.h"
#include "protocol/transport/transport.h"
#include "protocol/wire/commands.h"
#include "protocol/wire/frame.h"
#include "protocol/wire/writer.h"

namespace gpupool::client {

class CommandQueue {
 public:
  static constexpr const char* kThreadName = "gpupool-flusher";

  struct Hooks {
    // False: no room before the deadline, or the session has failed.
    std::function<bool(transport::Clock::time_point deadline)> wait_for_room;
    std::function<void(Error)> failed;
    // Returns the acknowledgement of received bytes that is due; it ends the batch that is about to be sent.
    std::function<std::optional<wire::Acknowledge>()> acknowledgement = nullptr;
    std::function<void()> before_flush = nullptr;  // called without locks of this class
    unsigned server = 0;                           // Session::index()
  };
  CommandQueue(transport::Connection& connection, std::chrono::milliseconds dead_peer_timeout, Hooks hooks);

  // Appends a command. `write_body(writer)` writes its body; `before_sending(sequence)` runs before the
  // command can reach the server.
  template <class WriteBody, class BeforeSending>
  void append(uint16_t id, uint16_t flags, uint64_t context, WriteBody&& write_body,
              BeforeSending&& before_sending) {
    const trace::Timer timer;
    size_t batch = 0, bytes = 0;
    uint64_t number = 0;
    {
      std::unique_lock lock(mutex_);
      if (held_back_) [[unlikely]]
        wait_to_go_on(lock);
      const size_t at = begin_command(pending_);
      wire::Writer writer(pending_);
      write_body(writer);
      before_sending(number = end_command(pending_, at, id, flags, context, 0));
      batch = pending_.size();
      bytes = batch - at;
      pending_bytes_.store(batch, std::memory_order_seq_cst);
    }
    if (batch > kBatchLimit)
      flush();
    else if (!(flags & wire::kWantsReply))
      wake_flusher();
    if (timer) [[unlikely]]
      trace::count_call(id, bytes, timer.passed(), hooks_.server, number);
  }
  // Appends a command without a reply, unless commands are held back or may_send() is false: then it returns
  // false.
  template <class Body, class MaySend, class BeforeSending>
  bool append_now(wire::Command command, const Body& body, MaySend&& may_send,
                  BeforeSending&& before_sending) {
    const std::lock_guard lock(mutex_);
    if (held_back_ || !may_send()) return false;
    const size_t at = begin_command(pending_);
    wire::Writer(pending_).put(body);
    before_sending(end_command(pending_, at, static_cast<uint16_t>(command), 0, 0, 0));
    pending_bytes_.store(pending_.size(), std::memory_order_seq_cst);
    return true;
  }

  // Sends a command at once, with `head` and then `payload` as its body, directly from the caller's memory.
  // Returns false if sending failed.
  template <class Head, class BeforeSending>
  bool send_bulk(uint16_t id, uint16_t flags, uint64_t context, const Head& head,
                 std::span<const iovec> payload, BeforeSending&& before_sending) {
    const trace::Timer timer;
    std::unique_lock sending(send_mutex_);
    size_t bytes = 0;
    uint64_t number = 0;
    {
      std::unique_lock lock(mutex_);
      while (held_back_) [[unlikely]] {
        sending.unlock();
        wait_to_go_on(lock);
        lock.unlock();
        sending.lock();
        lock.lock();
      }
      take_batch();
      const size_t at = begin_command(sending_);
      wire::Writer(sending_).put(head);
      for (const iovec& part : payload) bytes += part.iov_len;
      before_sending(number = end_command(sending_, at, id, flags, context, bytes));
      bytes += sending_.size() - at;
    }
    const bool sent = send(payload);
    if (timer) [[unlikely]]
      trace::count_call(id, bytes, timer.passed(), hooks_.server, number);
    return sent;
  }

  // --- Migration ---
  // Appends a command, and holds back all later ones until go_on().
  template <class Body, class BeforeSending>
  void append_last(wire::Command command, const Body& body, BeforeSending&& before_sending) {
    const std::lock_guard lock(mutex_);
    const size_t at = begin_command(pending_);
    wire::Writer(pending_).put(body);
    before_sending(end_command(pending_, at, static_cast<uint16_t>(command), wire::kWantsReply, 0, 0));
    pending_bytes_.store(pending_.size(), std::memory_order_seq_cst);
    held_back_ = true;
  }
  void go_on();
  bool holds_back() const {
    const std::lock_guard lock(mutex_);
    return held_back_;
  }
  // The number of the last command.
  uint64_t last_sequence() const {
    const std::lock_guard lock(mutex_);
    return sequence_;
  }
  // While commands are held back: sends a command to a server that the session is leaving, if that is
  // possible at once. Its number does not count.
  void send_farewell(wire::Command command, std::span<const std::byte> body);

  // Sends everything appended before the call. Returns false if sending failed.
  bool flush();
  // Like flush(), but does nothing if another thread is sending.
  void try_flush();
  // Makes the flusher thread send what was appended.
  void wake_flusher();

 private:
  // Bytes; above it the appending thread sends, which is back-pressure.
  static constexpr size_t kBatchLimit = 512 * 1024;

  static size_t begin_command(wire::Buffer& buffer);
  uint64_t end_command(wire::Buffer& buffer, size_t at, uint16_t id, uint16_t flags, uint64_t context,
                       size_t payload);
  void take_batch();  // call with both locks held
  bool wait_for_room();
  void wait_to_go_on(std::unique_lock<std::mutex>& lock);
  bool send(std::span<const iovec> payload);  // sends sending_, then payload; call with send_mutex_ held
  void run_flusher();

  transport::Connection& connection_;
  const std::chrono::milliseconds dead_peer_timeout_;
  const Hooks hooks_;

  std::mutex send_mutex_;
  wire::Buffer sending_;
  bool failed_ = false;

  // Separate cache lines: the flusher polls pending_bytes_ while threads append.
  alignas(64) mutable std::mutex mutex_;
  wire::Buffer pending_;
  uint64_t sequence_ = 0;
  bool held_back_ = false;
  std::condition_variable goes_on_;

  alignas(64) std::atomic<size_t> pending_bytes_{0};
  enum FlusherState : uint32_t { kNotStarted, kAwake, kAsleep };
  std::atomic<uint32_t> flusher_{kNotStarted};
};

}  // namespace gpupool::client
