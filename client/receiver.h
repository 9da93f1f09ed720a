// The receiving half of a session: reads the server's messages and hands each to whoever waits for it.
//
// No thread of its own in the common case: the app thread that waits reads the socket itself (it "pumps") until its own
// reply is there, and serves others on the way; threads that find somebody pumping sleep until their reply is there or the
// role is free. Only while something may arrive that nobody waits for (asynchronous device-to-host copies, host
// functions) a background thread pumps in the gaps. Any thread; after fail() every wait ends at once.
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
#include <thread>
#include <unordered_map>
#include <vector>

#include "protocol/cuda/cuda_header.h"
#include "protocol/transport/transport.h"
#include "protocol/wire/copies.h"
#include "protocol/wire/frame.h"
#include "protocol/wire/writer.h"

namespace gpupool::client {

// A command whose reply somebody waits for. Lives on the waiting thread's stack.
struct Waiter {
  uint64_t sequence = 0;
  uint16_t id = 0;  // of the call or command
  bool done = false;
  CUresult result = CUDA_SUCCESS;
  wire::Buffer body;
};

// Where the rows of a device-to-host copy go; without a destination, a copy whose data the server takes itself.
struct Transfer {
  std::byte* destination = nullptr;
  uint64_t pitch = 0;
  uint64_t width = 0;
  uint64_t rows = 0;
  bool background = false;  // nobody waits for it
  bool bulk = false;        // its data comes on the bulk connections
  uint64_t missing = 0;     // of a bulk transfer: bytes that have not come
  unsigned active = 0;      // threads that receive a piece of it
  std::shared_ptr<const void> held{};  // until the copy is over

  // Size of the piece of a bulk transfer that begins here; 0: none does.
  uint64_t piece_at(uint64_t offset) const {
    const uint64_t total = width * rows;
    const uint64_t piece = total != 0 ? wire::bulk_piece_bytes(width, rows) : 1;
    return offset < total && offset % piece == 0 ? std::min(piece, total - offset) : 0;
  }
};

class Receiver {
 public:
  struct Hooks {
    std::function<void()> ping;                        // sends a ping if that is possible without waiting
    std::function<void(uint64_t callback, uint64_t command, CUresult result)> host_callback;
    std::function<void(uint64_t sequence)> retired;    // frees up to this sequence number have taken effect
    std::function<void(Error)> failed;                 // the session is over
  };
  Receiver(transport::Connection& connection, std::chrono::milliseconds dead_peer_timeout, Hooks hooks);

  // Before the command is sent.
  void expect(Waiter& waiter);
  // Calls `then` with the result, on the thread that receives it; it must not block. A failed session's result is
  // CUDA_ERROR_DEVICE_UNAVAILABLE.
  void expect(uint64_t sequence, std::function<void(CUresult)> then);
  void expect_transfer(uint64_t sequence, const Transfer& transfer);
  // For the threads of the bulk connections, around each piece. Nullopt: nobody wants it (any more), or it cannot be.
  std::optional<Transfer> begin_piece(uint64_t sequence, uint64_t offset);
  void end_piece(uint64_t sequence, uint64_t length);
  // Until the session has failed, or the deadline: what broke a bulk connection may break the session, with a better reason.
  void await_failure(transport::Clock::time_point deadline);
  // Until the reply is there, or the session has failed (then false).
  bool wait(Waiter& waiter);
  // For a sender whose socket is full: waits for room, and reads meanwhile if nobody else does.
  bool wait_for_room(transport::Deadline deadline);
  // While interest is held, a background thread receives in the gaps.
  void add_interest();
  void drop_interest();
  // While the server is watched, a background thread pings it as if a reply were awaited, so that a silent server is noticed.
  void watch_server();
  void stop_watching();
  void fail();
  // As the server said last: the session's memory is limited (wire::kMemoryLimited).
  bool memory_limited() const { return memory_limited_.load(std::memory_order_relaxed); }
  void set_memory_limited(bool limited) { memory_limited_.store(limited, std::memory_order_relaxed); }
  // Likewise: wire::kBacklogLong.
  bool backlog_long() const { return backlog_long_.load(std::memory_order_relaxed); }
  bool transfers_pending() const { return background_transfers_.load() != 0; }
  // Is data from the device still to arrive in [memory, memory + bytes)?
  bool awaits_data_in(const void* memory, uint64_t bytes);

 private:
  using Lock = std::unique_lock<std::mutex>;
  bool receive_some();                          // reads what is there; false: failed
  bool parse();                                 // handles every whole message in the buffer
  bool handle(const wire::MessageHeader& header, const std::byte* body);
  void finish_transfer(Lock& lock, uint64_t sequence, bool good);
  bool receive_data(const wire::MessageHeader& header);
  bool scatter(const Transfer& transfer, uint64_t offset, uint64_t length);
  bool take(std::byte* to, uint64_t length);    // from the buffer, then from the connection
  bool pump_until_done(const Waiter& waiter);
  bool stay_alive(transport::Clock::time_point started);
  void note_received();
  void report(ErrorCode code, std::string message);
  void start_background();                      // mutex_ held
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
  unsigned active_pieces_ = 0;  // of bulk transfers: memory that is being written
  bool background_running_ = false;
  int interest_ = 0;
  int watched_ = 0;
  std::atomic<int> background_transfers_{0};
  std::atomic<bool> memory_limited_{false};
  std::atomic<bool> backlog_long_{false};

  // Owned by whoever pumps.
  std::vector<std::byte> buffer_;
  size_t begin_ = 0;
  size_t end_ = 0;
  transport::Clock::time_point last_received_;
  unsigned unanswered_pings_ = 0;
};

}  // namespace gpupool::client
