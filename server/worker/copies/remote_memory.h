// Moves bytes between the client's memory and this process's memory with transport::DirectMemory (RDMA reads
// and writes by the server). Uses no CPU on either side, and exposes no memory of the worker to the client.
//
// One thread posts a few pieces at a time and polls for their completion; it never waits for the device.
// Copies take turns, piece by piece. submit(): any thread. If the connection breaks or the client named
// memory that it has not registered, the session ends, and lost() of every copy is called.
#pragma once
#include <condition_variable>
#include <deque>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>

#include "protocol/transport/direct_memory.h"
#include "server/worker/copies/bandwidth.h"
#include "server/worker/session/outbox.h"

namespace gpupool::worker {

class RemoteMemory {
 public:
  struct Move {
    // flush: makes earlier writes of the copy visible to the client; names one byte of them
    enum { read, write, flush } what;
    std::byte* local = nullptr;  // unused by flush
    uint32_t local_key = 0;
    uint32_t remote_key = 0;
    uint64_t remote = 0;
    uint32_t bytes = 0;
  };
  class Copy {
   public:
    virtual ~Copy() = default;
    // Called for the pieces in order, as end() is. Returns nullopt if the copy is over: the piece is not
    // moved, and end() is not called for it.
    virtual std::optional<Move> begin(uint64_t piece) = 0;
    virtual void end(uint64_t piece) = 0;
    // No more pieces will be moved. Called on any thread, possibly more than once.
    virtual void lost() = 0;
  };

  // `direct` may be null: every submitted copy is lost. `bandwidth` may be null: nothing is charged.
  RemoteMemory(transport::DirectMemory* direct, Outbox& outbox,
               std::shared_ptr<Bandwidth> bandwidth = nullptr);
  ~RemoteMemory() { stop(); }
  RemoteMemory(const RemoteMemory&) = delete;
  RemoteMemory& operator=(const RemoteMemory&) = delete;

  transport::DirectMemory* memory() const { return direct_; }
  // Submits the pieces [first, last), which may be moved from now on.
  void submit(std::shared_ptr<Copy> copy, uint64_t first, uint64_t last);
  // Begins no more pieces. Pieces in progress end when the caller closes the connection.
  void close();
  // Closes, joins the thread, and then unregisters its memory.
  void stop();

 private:
  struct Entry {
    std::shared_ptr<Copy> copy;
    uint64_t next;
    uint64_t last;
  };
  void run();
  bool take(Entry& entry);
  Result<void> turn();
  Result<void> post(const Entry& entry);
  Result<void> sleep();
  void wait_for_debt();
  void lose(const Error* why);

  transport::DirectMemory* const direct_;
  Outbox& outbox_;
  const std::shared_ptr<Bandwidth> bandwidth_;
  // Used by the thread only:
  std::deque<std::pair<std::shared_ptr<Copy>, uint64_t>> under_way_;
  transport::Clock::time_point last_seen_{};  // time of the last completion or post
  alignas(64) std::byte flushed_[64]{};       // destination of the read that implements a flush
  std::optional<transport::DirectMemory::Region> flushed_region_;

  std::mutex mutex_;  // guards the rest
  std::condition_variable wake_;
  std::deque<Entry> queue_;
  bool asleep_ = false;  // inside DirectMemory::wait()
  bool closed_ = false;
  bool broken_ = false;
  std::thread thread_;
};

}  // namespace gpupool::worker
