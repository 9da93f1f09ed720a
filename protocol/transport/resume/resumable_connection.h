// A connection that survives the loss of what carries it. If the carrier (a connection of any transport)
// breaks, both sides continue on another carrier at the byte where they were: none is lost or repeated.
//
// Each side counts the bytes that it has sent and received, and keeps what it has sent until the peer has
// acknowledged it. The protocol above carries the acknowledgements: a side tells its peer received(), and
// passes what the peer tells to acknowledge(). A bounded number of bytes is kept; while more are
// unacknowledged, the connection works but cannot be resumed. Nothing is kept of what a carrier holds in
// memory of both sides (Connection::outlives_break()): the receiver reads it there before it goes on.
//
// Until start() it passes everything on to its first carrier.
//
// While the carrier is broken, send_some() and receive_some() return 0 and wait() blocks; its deadline moves
// by the time that the connection was broken (unless keep_deadlines() was called). Another thread of the
// owner makes the next carrier:
//
//   connection.wait_for_end();        // then what arrived before the end can be read
//   while (auto why = connection.wait_for_break()) {
//     uint64_t received = connection.retire_carrier();
//     ... connect again and tell the peer `received`; it answers with its own count ...
//     connection.resume(std::move(carrier), peer_received);   // or give_up() or try again
//   }
//
// One sender and one receiver at a time, as for every Connection; the functions below upgrade() may be called
// by any thread.
#pragma once
#include <atomic>
#include <condition_variable>
#include <deque>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>

#include "protocol/transport/resume/kept_bytes.h"
#include "protocol/transport/transport.h"

namespace gpupool::transport {

// For sections that never block, and are nearly always free: half of a mutex's cost.
class SpinLock {
 public:
  bool try_lock() { return !taken_.exchange(true, std::memory_order_acquire); }
  void lock() {
    while (!try_lock()) std::this_thread::yield();
  }
  void unlock() { taken_.store(false, std::memory_order_release); }

 private:
  std::atomic<bool> taken_{false};
};

class ResumableConnection final : public Connection {
 public:
  static constexpr size_t kMostKept = 64u << 20;

  explicit ResumableConnection(std::unique_ptr<Connection> carrier, size_t most_kept = kMostKept);
  // Both sides count bytes from here: the hellos are exchanged and the carrier is upgraded. Call before other
  // threads use the connection.
  void start();

  Result<size_t> send_some(std::span<const iovec> buffers) override;
  Result<size_t> receive_some(std::span<std::byte> buffer) override;
  Result<Ready> wait(bool for_receive, bool for_send, Deadline deadline) override;
  Patience patience() const override;
  void check_peer_alive() override;
  void interrupt() override;
  void close() override;  // for good
  std::string peer() const override { return current()->peer(); }
  int release_descriptor() override;  // takes no lock: also for a forked child
  Result<void> upgrade(Side side, Deadline deadline) override { return carrier_->upgrade(side, deadline); }
  bool shares_memory() const override { return current()->shares_memory(); }
  std::string carrier() const override { return current()->carrier(); }
  // The same object for all carriers.
  DirectMemory* direct_memory() override { return current()->direct_memory(); }
  std::shared_ptr<SessionResources> session_resources() const override {
    return current()->session_resources();
  }
  Result<void> send_descriptor(int descriptor, Deadline deadline) override;
  Result<int> receive_descriptor(Deadline deadline) override;
  bool wait_for_end() override;
  bool break_carrier(const Error& why) override;

  // True if the connection is over for good.
  bool over() const {
    const Lock lock(mutex_);
    return final_error_.has_value();
  }
  // How often the connection continued on another carrier.
  uint64_t times_resumed() const { return times_resumed_.load(std::memory_order_acquire); }
  // True while there is no carrier.
  bool broken() const { return is_broken(); }
  bool started() const { return started_.load(std::memory_order_acquire); }
  // Bytes received since start().
  uint64_t received() const { return received_.load(std::memory_order_acquire); }
  // True if the peer should be told received() again.
  bool acknowledgement_due() const {
    return received() - told_.load(std::memory_order_relaxed) >= kTellEvery;
  }
  // Returns received(), and remembers that the peer is told.
  uint64_t tell_received();
  // The peer has received this many bytes. The next send_some() fails if they were never sent.
  void acknowledge(uint64_t position);
  // The same with the low 32 bits of the position.
  void acknowledge_low(uint32_t position);
  // For the sender: memory that stays as it is until take_back(), so that its bytes need not be copied when
  // they are sent. Replaces what was lent before.
  void lend(std::span<const std::byte> memory);
  // On return the memory is not read any more, but its bytes can still be sent again. Any thread.
  void take_back(std::span<const std::byte> memory);
  // After close(): drops everything that was kept. On return no lent memory is read any more. Any thread.
  void drop_kept();
  // Bytes that were sent again after breaks.
  uint64_t resent() const { return resent_.load(std::memory_order_relaxed); }
  // Bytes that were sent and are not acknowledged.
  uint64_t unacknowledged() const {
    return sent_.load(std::memory_order_relaxed) - acknowledged_.load(std::memory_order_relaxed);
  }

  // Blocks until the carrier is broken and returns the reason; nullopt: the connection was closed for good,
  // or the deadline has passed.
  std::optional<Error> wait_for_break(Deadline deadline = std::nullopt);
  // Ends all use of the broken carrier and returns received(), which then stays the same until resume().
  uint64_t retire_carrier();
  // Continues on `carrier`, whose peer has received `peer_received` bytes. Blocks until everything that the
  // peer has missed was sent. An error means that the connection cannot be resumed with this position; it is
  // still broken then. If the new carrier breaks meanwhile, the result is success: wait_for_break() tells.
  Result<void> resume(std::unique_ptr<Connection> carrier, uint64_t peer_received);
  // From now on deadlines of wait() also pass while the connection is broken.
  void keep_deadlines();
  // Takes over the carrier and the positions of another connection, which may not be used any more; for a
  // session that continues with another peer. Nothing may be underway on this one. Call instead of resume().
  void continue_as(ResumableConnection& other);
  // The connection will not be resumed: all calls fail with this error. Also wakes wait(), which fails if it
  // waits for no direction, and otherwise reports the directions as ready.
  void give_up(Error why);

 private:
  using Lock = std::unique_lock<std::mutex>;
  using Section = std::unique_lock<SpinLock>;
  std::shared_ptr<Connection> current() const;
  // `carrier`: the one that failed, which another thread may have replaced.
  Result<size_t> fail_or_break(const Connection* carrier, const Error& error);
  // Call with mutex_ held.
  void break_locked(const Error& why);
  void give_up_locked(Error why);
  bool is_broken() const { return broken_.load(std::memory_order_acquire); }
  Result<bool> resend();  // call with sending_ held; false: no room, or the carrier is broken
  void finish_resending();
  Result<void> replace_carrier(std::shared_ptr<Connection> next, uint64_t peer_received);
  Result<size_t> receive_unread(std::span<std::byte> buffer);

  // carrier_ changes with all three locks held, in this order, so each of them protects reading it.
  SpinLock sending_;
  KeptBytes kept_;
  uint64_t carried_ = 0;  // bytes that this or an earlier carrier has taken and the peer has or will get
  // Bytes of the last send_some() that were not accepted. A carrier that breaks may have sent some of them;
  // the caller offers them again.
  uint64_t offered_ = 0;
  uint64_t known_ = 0;  // how many of the next bytes the peer has already
  SpinLock receiving_;
  std::atomic<uint64_t> received_{0};
  // Broken carriers that hold bytes to be received before those of carrier_.
  std::deque<std::shared_ptr<Connection>> unread_;
  mutable std::mutex mutex_;  // guards what follows
  std::condition_variable changed_;
  std::shared_ptr<Connection> carrier_;
  std::optional<Error> why_broken_;
  std::optional<Error> final_error_;
  bool resending_ = false;
  bool keeps_deadlines_ = false;

  static constexpr uint64_t kTellEvery = 256 * 1024;
  std::atomic<bool> started_{false};
  std::atomic<Connection*> descriptor_owner_;  // carrier_, for release_descriptor()
  std::atomic<uint64_t> sent_{0}, told_{0}, resent_{0}, times_resumed_{0};
  std::atomic<bool> broken_{false};  // carrier_ must not be used; also set for good
  std::atomic<bool> interrupted_{false};
  std::atomic<bool> has_unread_{false};  // unread_ is not empty
  std::atomic<uint64_t> acknowledged_{0};
};

}  // namespace gpupool::transport
