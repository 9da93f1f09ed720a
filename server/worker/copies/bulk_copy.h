// State that both directions of a large copy share: a copy whose rows travel on the bulk connections
// (BulkCopy in protocol/wire/commands.h) or through RemoteMemory.
//
// Where the CPU can access device memory, pieces go directly between it and the socket; elsewhere they go
// through staging memory (staged_copy.h). In both cases the gate of the copy's stream is closed until the
// copy is over (stream_gates.h), so the stream keeps CUDA's order while neither the executor nor another
// stream waits.
#pragma once
#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <memory>
#include <mutex>
#include <span>
#include <unordered_map>
#include <vector>

#include "protocol/wire/copies.h"
#include "server/worker/session/contexts.h"
#include "server/worker/session/dump.h"
#include "server/worker/session/stream_gates.h"
#include "server/worker/timeline/host_span.h"

namespace gpupool::worker {

// A rectangle of rows in device memory; sizes in bytes.
struct DeviceRows {
  uint64_t address = 0;
  uint64_t pitch = 0;
  uint64_t width = 0;
  uint64_t rows = 1;

  uint64_t total() const { return width * rows; }
  MemoryRange range() const { return {address, (rows - 1) * pitch + width}; }
  uint64_t piece_bytes() const { return wire::bulk_piece_bytes(width, rows); }
  uint64_t pieces() const { return (total() + piece_bytes() - 1) / piece_bytes(); }
  uint64_t size_of(uint64_t piece) const { return std::min(piece_bytes(), total() - piece * piece_bytes()); }
};

// A copy in progress. Its context must be current in the thread that calls cancel().
class BulkCopy {
 public:
  // `context` is null for a copy of no bytes.
  BulkCopy(ContextState* context, const DeviceRows& rows, bool to_device)
      : context(context ? context->object : nullptr),
        rows(rows),
        to_device(to_device),
        events_(context ? context->events : nullptr) {}
  virtual ~BulkCopy() {
    if (span) span->discard();  // no effect on a copy that is complete
  }
  BulkCopy(const BulkCopy&) = delete;
  BulkCopy& operator=(const BulkCopy&) = delete;
  // Gives up the rest of the data and opens the gate. Returns when no thread accesses the copy's memory any
  // more. Executor's thread.
  virtual void cancel() = 0;

  const CUcontext context;
  const DeviceRows rows;
  const bool to_device;
  const std::chrono::steady_clock::time_point since = std::chrono::steady_clock::now();
  std::shared_ptr<HostSpan> span;  // for the timeline; null: not recorded
  // Bytes transferred so far, for monitoring. Any thread.
  uint64_t done_bytes() const { return std::min(done_bytes_.load(std::memory_order_relaxed), rows.total()); }

 protected:
  // Returns whether all bytes have been transferred.
  bool count_done(uint64_t bytes) {
    return done_bytes_.fetch_add(bytes, std::memory_order_relaxed) + bytes >= rows.total();
  }
  const std::shared_ptr<EventPool> events_;

 private:
  std::atomic<uint64_t> done_bytes_{0};
};

// The session's large copies in progress, by the sequence numbers of their commands. Any thread.
class BulkCopies {
 public:
  void add(uint64_t sequence, std::shared_ptr<BulkCopy> copy);
  void remove(uint64_t sequence);
  std::shared_ptr<BulkCopy> find(uint64_t sequence);
  // Waits until passed() was called for this or a later command. Returns null if the command announced no
  // copy, if the copy is over, or if the session ends.
  std::shared_ptr<BulkCopy> await(uint64_t sequence);
  // Call when the command `sequence` was executed or announced; await() no longer waits for it or for earlier
  // commands.
  void passed(uint64_t sequence);
  // Registers a copy whose command is still in the backlog, so that its data can be received: await() finds
  // the copy, and take_announced() returns it once.
  void announce(uint64_t sequence, std::shared_ptr<BulkCopy> copy);
  std::shared_ptr<BulkCopy> take_announced(uint64_t sequence);
  // Reserves ordinary memory for data that arrives before its stream reaches the copy. Returns false if the
  // total would exceed `limit` bytes.
  bool take_room(uint64_t bytes, uint64_t limit);
  void give_room(uint64_t bytes) { early_bytes_.fetch_sub(bytes); }
  // Waits until no copy of `context` is in progress. Returns false if the deadline came first.
  bool drain(CUcontext context, std::chrono::steady_clock::time_point deadline);
  // Cancels the copies of one context, which must be current.
  void cancel(CUcontext context);
  // Ends all calls of await(), current and future ones.
  void end();
  void describe(admin::WorkerDump& dump);

 private:
  std::mutex mutex_;  // never held during a driver call
  std::condition_variable changed_;
  std::unordered_map<uint64_t, std::shared_ptr<BulkCopy>> copies_, announced_;
  std::atomic<uint64_t> early_bytes_{0};  // reserved by take_room()
  uint64_t passed_ = 0;
  bool over_ = false;
};

// Copy one piece between its rows and `packed` host memory with the CPU; device memory must be accessible to
// the CPU.
void gather(const DeviceRows& rows, uint64_t offset, std::span<std::byte> packed);
void scatter(const DeviceRows& rows, uint64_t offset, std::span<const std::byte> packed);
// Enqueue the same copies in `stream`.
CUresult copy_piece_in(const DeviceApi& api, const DeviceRows& rows, uint64_t piece, std::byte* from,
                       CUstream stream);
CUresult copy_piece_out(const DeviceApi& api, const DeviceRows& rows, uint64_t piece, std::byte* to,
                        CUstream stream);

}  // namespace gpupool::worker
