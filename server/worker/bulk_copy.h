// One copy whose rows travel on the bulk connections (protocol/wire/commands.h, BulkCopy) or by RemoteMemory: what both directions share.
//
// Where the CPU reaches the device's memory, pieces go between it and the socket directly. Elsewhere they go through staging memory
// (staged_copy.h). Either way the copy's stream has a closed gate until the copy is over (stream_gates.h): the stream keeps CUDA's order, and
// neither the executor nor another stream waits.
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
#include "server/worker/contexts.h"
#include "server/worker/dump.h"

namespace gpupool::worker {

// Rows in device memory.
struct DeviceRows {
  uint64_t address = 0;
  uint64_t pitch = 0;
  uint64_t width = 0;
  uint64_t rows = 1;

  uint64_t total() const { return width * rows; }
  uint64_t piece_bytes() const { return wire::bulk_piece_bytes(width, rows); }
  uint64_t pieces() const { return (total() + piece_bytes() - 1) / piece_bytes(); }
  uint64_t size_of(uint64_t piece) const { return std::min(piece_bytes(), total() - piece * piece_bytes()); }
};

// What is registered of a copy that is on its way. The context that it belongs to is current where cancel() is called.
class BulkCopy {
 public:
  // Null: a copy that touches nothing.
  BulkCopy(ContextState* context, const DeviceRows& rows, bool to_device)
      : context(context ? context->object : nullptr), rows(rows), to_device(to_device), events_(context ? context->events : nullptr) {}
  virtual ~BulkCopy() = default;
  BulkCopy(const BulkCopy&) = delete;
  BulkCopy& operator=(const BulkCopy&) = delete;
  // The rest of the data will not come, or be sent: the gate opens. Returns when no thread is at the copy's memory. Executor's thread.
  virtual void cancel() = 0;

  const CUcontext context;
  const DeviceRows rows;
  const bool to_device;
  const std::chrono::steady_clock::time_point since = std::chrono::steady_clock::now();
  // For monitoring. Any thread.
  uint64_t done_bytes() const { return std::min(done_bytes_.load(std::memory_order_relaxed), rows.total()); }

 protected:
  void count_done(uint64_t bytes) { done_bytes_.fetch_add(bytes, std::memory_order_relaxed); }
  const std::shared_ptr<EventPool> events_;

 private:
  std::atomic<uint64_t> done_bytes_{0};
};

// The copies on their way. Any thread.
class BulkCopies {
 public:
  void add(uint64_t sequence, std::shared_ptr<BulkCopy> copy);
  void remove(uint64_t sequence);
  std::shared_ptr<BulkCopy> find(uint64_t sequence);
  // Waits until the executor has received the command. Null: it announced no copy (or one that is over), or the session ends.
  std::shared_ptr<BulkCopy> await(uint64_t sequence);
  // Commands up to this one have been executed.
  void passed(uint64_t sequence);
  // A copy whose command is in the backlog, so that its data may come: await() finds it, and take_announced() does, once.
  void announce(uint64_t sequence, std::shared_ptr<BulkCopy> copy);
  std::shared_ptr<BulkCopy> take_announced(uint64_t sequence);
  // Room in ordinary memory for data that comes before its stream gets to the copy. False: more than `limit` would lie there.
  bool take_room(uint64_t bytes, uint64_t limit);
  void give_room(uint64_t bytes) { early_bytes_.fetch_sub(bytes); }
  // Until no copy of `context` is on its way; false: the deadline came first.
  bool drain(CUcontext context, std::chrono::steady_clock::time_point deadline);
  // Those of one context, which is current.
  void cancel(CUcontext context);
  // await() waits no more.
  void end();
  void describe(admin::WorkerDump& dump);

 private:
  std::mutex mutex_;  // never held during a driver call
  std::condition_variable changed_;
  std::unordered_map<uint64_t, std::shared_ptr<BulkCopy>> copies_, announced_;
  std::atomic<uint64_t> early_bytes_{0};  // of take_room()
  uint64_t passed_ = 0;
  bool over_ = false;
};

// One piece between its rows and `packed` memory that the CPU reaches, at the CPU's speed.
void gather(const DeviceRows& rows, uint64_t offset, std::span<std::byte> packed);
void scatter(const DeviceRows& rows, uint64_t offset, std::span<const std::byte> packed);
// The same on the device, as part of `stream`.
CUresult copy_piece_in(const DeviceApi& api, const DeviceRows& rows, uint64_t piece, std::byte* from, CUstream stream);
CUresult copy_piece_out(const DeviceApi& api, const DeviceRows& rows, uint64_t piece, std::byte* to, CUstream stream);

}  // namespace gpupool::worker
