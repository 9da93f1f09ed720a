// Moves bytes between memory of the client's and this process's, by transport::DirectMemory: no processor touches them, and
// nothing here is open to the client.
//
// One thread posts pieces, a few at a time, and sees them complete; it never waits for the device. Copies take turns, piece
// by piece. submit() may be called by any thread. When the connection breaks, or the client named memory that it has not
// registered, the session ends and every copy hears that it is lost.
#pragma once
#include <condition_variable>
#include <deque>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>

#include "protocol/transport/direct_memory.h"
#include "server/worker/bandwidth.h"
#include "server/worker/outbox.h"

namespace gpupool::worker {

class RemoteMemory {
 public:
  struct Move {
    enum { read, write, flush } what;  // flush: what the copy wrote before can be seen by the client; names a byte of it
    std::byte* local = nullptr;        // not for flush
    uint32_t local_key = 0;
    uint32_t remote_key = 0;
    uint64_t remote = 0;
    uint32_t bytes = 0;
  };
  class Copy {
   public:
    virtual ~Copy() = default;
    // Its pieces are begun in order, and end in order. Nullopt: the copy is over; this piece is not moved, and does not end.
    virtual std::optional<Move> begin(uint64_t piece) = 0;
    virtual void end(uint64_t piece) = 0;
    // No more pieces will be moved. Any thread, and perhaps more than once.
    virtual void lost() = 0;
  };

  // `direct` may be null: then there is nothing to submit. `bandwidth` too: then nothing is charged.
  RemoteMemory(transport::DirectMemory* direct, Outbox& outbox, std::shared_ptr<Bandwidth> bandwidth = nullptr);
  ~RemoteMemory() { stop(); }
  RemoteMemory(const RemoteMemory&) = delete;
  RemoteMemory& operator=(const RemoteMemory&) = delete;

  transport::DirectMemory* memory() const { return direct_; }
  // The pieces [first, last) may be moved.
  void submit(std::shared_ptr<Copy> copy, uint64_t first, uint64_t last);
  // Begins no more pieces. Those under way end when the connection is closed, which is the caller's to do.
  void close();
  // Waits for the thread, too; then lets go of what it has registered.
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
  void pay_off();
  void lose(const Error* why);

  transport::DirectMemory* const direct_;
  Outbox& outbox_;
  const std::shared_ptr<Bandwidth> bandwidth_;
  // The thread's own.
  std::deque<std::pair<std::shared_ptr<Copy>, uint64_t>> under_way_;
  transport::Clock::time_point last_seen_{};  // something completed or was posted
  alignas(64) std::byte flushed_[64]{};       // where a flush reads to
  std::optional<transport::DirectMemory::Region> flushed_region_;

  std::mutex mutex_;  // what follows
  std::condition_variable wake_;
  std::deque<Entry> queue_;
  bool asleep_ = false;  // in DirectMemory::wait()
  bool closed_ = false;
  bool broken_ = false;
  std::thread thread_;
};

}  // namespace gpupool::worker
