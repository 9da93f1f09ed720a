// The sending side of a session's connection: sends whole messages in the order of the calls, under one
// mutex. Any thread. A sender blocks while the client does not read; the transport detects a dead client.
// After the first failure or end(), nothing more is sent and the connection is closed, which also ends the
// executor's receiving.
#pragma once
#include <atomic>
#include <chrono>
#include <initializer_list>
#include <mutex>
#include <span>
#include <string_view>

#include "protocol/transport/resume/resumable_connection.h"
#include "protocol/transport/transport.h"
#include "protocol/wire/frame.h"
#include "server/quota/ledger.h"
#include "server/quota/session_page.h"

namespace gpupool::worker {

class Outbox {
 public:
  // `resumable`: the connection below `connection` that the client may resume; null: none.
  Outbox(transport::Connection& connection, quota::SessionPage& counters, const quota::Ledger& ledger,
         transport::ResumableConnection* resumable = nullptr)
      : connection_(connection), counters_(counters), ledger_(ledger), resumable_(resumable) {}
  Outbox(const Outbox&) = delete;
  Outbox& operator=(const Outbox&) = delete;

  // Returns false if the session is over.
  bool send(wire::MessageKind kind, int32_t result, uint64_t sequence, std::span<const std::byte> body = {},
            std::span<const std::byte> more = {});
  // Tells the client that the worker is alive, but not while the connection is broken: the caller would wait
  // for the client's return.
  void send_sign_of_life();
  // Sends the reason for the end of the session, waiting only briefly for a client that does not read, and
  // closes the connection.
  void end(std::string_view reason);
  void close();
  // The reply to this command is the last message until speak(): the client may read the following ones from
  // another server.
  void be_silent_after(uint64_t command) {
    const std::lock_guard lock(mutex_);
    last_ = command;
  }
  void speak() {
    if (last_.load(std::memory_order_relaxed) == 0) return;
    const std::lock_guard lock(mutex_);
    last_ = 0;
    silent_ = false;
  }
  // The session's counters, for senders on other connections.
  quota::SessionPage& counters() const { return counters_; }
  // For monitoring: whether a thread is sending right now.
  bool sending() { return !std::unique_lock(mutex_, std::try_to_lock); }
  // True if much has been received since the client was told how much.
  bool acknowledgement_due() const { return resumable_ && resumable_->acknowledgement_due(); }
  bool over() const { return over_.load(std::memory_order_acquire); }

  // Value of wire::kSendAwaitRoom in later messages.
  void set_backlog_long(bool is_long) { backlog_long_.store(is_long, std::memory_order_relaxed); }
  // Value of MessageHeader::retired in later messages; must not decrease.
  void set_retired(uint64_t sequence) { retired_.store(sequence, std::memory_order_release); }

 private:
  bool send_locked(wire::MessageHeader header, std::span<const std::byte> body,
                   std::span<const std::byte> more, transport::Deadline deadline);

  transport::Connection& connection_;
  quota::SessionPage& counters_;
  const quota::Ledger& ledger_;
  transport::ResumableConnection* const resumable_;
  std::mutex mutex_;
  std::atomic<uint64_t> retired_{0};
  std::atomic<bool> backlog_long_{false};
  std::atomic<bool> over_{false};
  std::atomic<uint64_t> last_{0};  // written under mutex_
  bool silent_ = false;            // guarded by mutex_
};

}  // namespace gpupool::worker
