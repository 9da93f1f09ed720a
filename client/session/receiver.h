// The receiving half of a session: reads the server's messages and passes each to the thread or handler that
// waits for it.
//
// There is normally no receiver thread: a program thread that waits reads the socket itself ("pumps") until
// its own reply is there, and delivers other replies on the way. Threads that find another one pumping sleep
// until their reply is there or the role is free. A background thread pumps in the gaps only while messages
// are expected that no thread waits for (asynchronous device-to-host copies, host functions). Thread-safe;
// after fail() every wait returns at once.
#pragma once
#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <thread>
#include <unordered_map>
#include <vector>

#include "protocol/driver/cuda_header.h"
#include "protocol/transport/transport.h"
#include "protocol/wire/copies.h"
#include "protocol/wire/frame.h"
#include "protocol/wire/writer.h"

namespace gpupool::client {

// A command whose reply a thread waits for. Lives on that thread's stack.
struct Waiter {
  uint64_t sequence = 0;
  uint16_t id = 0;  // id of the call or command
  bool done = false;
  CUresult result = CUDA_SUCCESS;
  wire::Buffer body;
};

// The destination of a device-to-host copy's rows. Without `destination`: a direct copy to the device, whose
// data the server reads itself.
struct Transfer {
  std::byte* destination = nullptr;
  uint64_t pitch = 0;
  uint64_t width = 0;
  uint64_t rows = 0;
  bool background = false;  // asynchronous: no thread waits for it
  bool bulk = false;        // its data comes on the bulk connections, or the server transfers it by RDMA
  uint64_t missing = 0;     // bulk transfers: bytes not yet received
  unsigned active = 0;      // threads that are receiving a piece of it
  std::shared_ptr<const void> held{};  // kept alive until the copy is over

  // Returns the size of the bulk transfer's piece that begins at `offset`; 0: none begins there.
  uint64_t piece_at(uint64_t offset) const {
    const uint64_t total = width * rows;
    const uint64_t piece = total != 0 ? wire::bulk_piece_bytes(width, rows) : 1;
    return offset < total && offset % piece == 0 ? std::min(piece, total - offset) : 0;
  }
};

class Receiver {
 public:
  struct Hooks {
    std::function<void()> ping;  // sends a ping if possible without blocking
    std::function<void(uint64_t callback, uint64_t command, CUresult result)> host_callback;
    std::function<void(uint64_t sequence)> retired;  // frees up to this number have taken effect
    std::function<void(Error)> failed;               // the session has failed
    // The body of a quota_refusal; returns false if it is malformed. May be empty: refusals are ignored.
    std::function<bool(std::span<const std::byte> refusal)> quota_refused{};
    std::function<void()> received = nullptr;  // some bytes have arrived
    // MessageHeader::acknowledged of a message, unless it is 0.
    std::function<void(uint32_t)> acknowledged = nullptr;
    // The body of a migration_wish; returns false if it is malformed.
    std::function<bool(std::span<const std::byte> wish)> migration_wished = nullptr;
    // The body of a timeline message; returns false if it is malformed.
    std::function<bool(std::span<const std::byte> body)> timeline_received = nullptr;
    unsigned server = 0;  // Session::index()

    // Passes on the body of a message that has a handler of its own. False: it is malformed, or has none.
    bool take(wire::MessageKind kind, std::span<const std::byte> body) const {
      if (kind == wire::MessageKind::quota_refusal) return !quota_refused || quota_refused(body);
      if (kind == wire::MessageKind::timeline) return timeline_received && timeline_received(body);
      return kind == wire::MessageKind::migration_wish && (!migration_wished || migration_wished(body));
    }
  };
  Receiver(transport::Connection& connection, std::chrono::milliseconds dead_peer_timeout, Hooks hooks);

  // Registers a wait. Call before the command is sent.
  void expect(Waiter& waiter);
  // Calls `then` with the result, on the receiving thread; it must not block. If the session fails, the
  // result is CUDA_ERROR_DEVICE_UNAVAILABLE.
  void expect(uint64_t sequence, std::function<void(CUresult)> then);
  void expect_transfer(uint64_t sequence, const Transfer& transfer);
  // Called by the threads of the bulk connections around each piece. nullopt: no transfer expects this piece.
  std::optional<Transfer> begin_piece(uint64_t sequence, uint64_t offset);
  void end_piece(uint64_t sequence, uint64_t length);
  // Blocks until the session has failed, or until the deadline: the cause that broke a bulk connection may
  // also break the session, with a better error message.
  void await_failure(transport::Clock::time_point deadline);
  // Blocks until the reply is there (true) or the session has failed (false).
  bool wait(Waiter& waiter);
  // For a sender whose socket is full: waits for room, and pumps meanwhile whenever no other thread does.
  // False: failed, or no room before the deadline.
  bool wait_for_room(transport::Clock::time_point deadline);
  // Reads and handles what has arrived, and the rest of a message that has begun, unless another thread
  // reads. At most kMostReads times: a server that never ceases to send must not hold the caller.
  void read_some();
  static constexpr unsigned kMostReads = 16;
  // Blocks until done(), or until the session has failed or the deadline; returns done(). A background thread
  // reads meanwhile, which may block while the connection is broken. done() is called with a lock held; the
  // handler of the message that changes it calls wake() afterwards.
  bool await(const std::function<bool()>& done, transport::Clock::time_point deadline);
  void wake();
  // While interest is held, a background thread pumps in the gaps.
  void add_interest();
  void drop_interest();
  // While the server is watched, a background thread pings it as if a reply were awaited, to detect a dead
  // server.
  void watch_server();
  void stop_watching();
  void fail();
  // wire::kMemoryLimited of the last message: the session's memory is limited.
  bool memory_limited() const { return memory_limited_.load(std::memory_order_relaxed); }
  void set_memory_limited(bool limited) { memory_limited_.store(limited, std::memory_order_relaxed); }
  // wire::kSendAwaitRoom of the last message.
  bool backlog_long() const { return backlog_long_.load(std::memory_order_relaxed); }
  bool transfers_pending() const { return background_transfers_.load() != 0; }
  // True if data from the device has yet to arrive in [memory, memory + bytes).
  bool awaits_data_in(const void* memory, uint64_t bytes);

 private:
  using Lock = std::unique_lock<std::mutex>;
  bool receive_some();  // reads what is available; false: failed
  bool parse();         // handles every complete message in the buffer
  bool handle(const wire::MessageHeader& header, const std::byte* body);
  void finish_transfer(Lock& lock, uint64_t sequence, bool good);
  bool receive_data(const wire::MessageHeader& header);
  bool scatter(const Transfer& transfer, uint64_t offset, uint64_t length);
  bool take(std::byte* to, uint64_t length);  // copies from the buffer, then from the connection
  bool wait_for_data();
  bool pump_until_done(const Waiter& waiter);
  bool stay_alive(transport::Clock::time_point started);
  void note_received();
  void report(ErrorCode code, std::string message);
  void start_background();  // call with mutex_ held
  void run_background();
  bool is_done(const Waiter& waiter);
  void release_role();

  transport::Connection& connection_;
  const std::chrono::milliseconds dead_peer_timeout_;
  const Hooks hooks_;

  std::mutex mutex_;  // guards waiters_, handlers_, transfers_, pumping_, interest_, watched_, failed_
  std::condition_variable changed_;
  std::unordered_map<uint64_t, Waiter*> waiters_;
  std::unordered_map<uint64_t, std::function<void(CUresult)>> handlers_;
  std::unordered_map<uint64_t, Transfer> transfers_;
  bool pumping_ = false;
  bool failed_ = false;
  unsigned active_pieces_ = 0;  // pieces of bulk transfers that are being received
  bool background_running_ = false;
  int interest_ = 0;
  int watched_ = 0;
  std::atomic<int> background_transfers_{0};
  std::atomic<bool> memory_limited_{false};
  std::atomic<bool> backlog_long_{false};

  static constexpr size_t kBufferBytes = 64 * 1024;  // replies are small, bulk data bypasses it
  // Owned by the pumping thread.
  std::vector<std::byte> buffer_;
  size_t begin_ = 0;
  size_t end_ = 0;
  transport::Clock::time_point last_received_;
  unsigned unanswered_pings_ = 0;
};

}  // namespace gpupool::client
