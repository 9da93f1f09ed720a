// One announced copy whose rows travel on the bulk connections (protocol/wire/commands.h, BulkCopy): what both directions
// share.
//
// Where the CPU reaches the device's memory, pieces go between it and the socket directly, while the copy's stream waits
// for a signal. Elsewhere they go through a ring of pinned pieces: the executor enqueues at once, for every piece, "wait
// until it is there (or free), copy it", and the connections' threads fill or empty the ring. Either way the stream keeps
// CUDA's order, and neither the executor nor another stream waits.
#pragma once
#include <algorithm>
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
#include "server/worker/signals.h"
#include "server/worker/staging.h"

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

constexpr size_t kRingPieces = 16;  // of a staged copy: as much as the device and the network need to overlap

// The stages of a copy that goes through staging memory.
struct Ring {
  std::vector<StagingChunk*> chunks;
  std::vector<Signal*> signals;      // one per chunk: how often it has been filled (to the device) or emptied
  std::vector<uint32_t> first;       // the signals' values before the copy
  std::vector<CUevent> events;       // per piece: the device has copied it
  uint64_t pieces = 0;               // of the copy

  // Takes what is there without waiting, at least one piece; false: out of memory. `registered`: for DirectMemory, too.
  bool take(Staging& staging, ContextState& context, uint64_t pieces, bool registered);
  // What `stream` has to do for a copy to the device: `events`, for every piece that makes room for another one. *enqueued:
  // the pieces that have got their place in the stream.
  CUresult enqueue_in(const DeviceApi& api, SignalPool& signals, EventPool& events, const DeviceRows& rows, CUstream stream,
                      uint64_t* enqueued);
  // The same for one from the device: `ready`, for every piece that lies in the ring.
  CUresult enqueue_out(const DeviceApi& api, SignalPool& signals, EventPool& events, const DeviceRows& rows, CUstream stream,
                       std::vector<CUevent>* ready);
  size_t slot(uint64_t piece) const { return piece % chunks.size(); }
  uint32_t round(uint64_t piece) const { return first[slot(piece)] + static_cast<uint32_t>(piece / chunks.size()) + 1; }
  // Executor's thread: the chunks are kept until `stream` is through with what it got so far.
  void release_after(Staging& staging, StreamState& stream);
  void give_back(EventPool& events, SignalPool& signals);
};

// What is registered of a copy that is on its way. The context that it belongs to is current where cancel() is called.
class BulkCopy {
 public:
  // Null: a copy that touches nothing.
  BulkCopy(ContextState* context, const DeviceRows& rows)
      : context(context ? context->object : nullptr),
        rows(rows),
        events_(context ? context->events : nullptr),
        signals_(context ? context->signals : nullptr) {}
  virtual ~BulkCopy() = default;
  BulkCopy(const BulkCopy&) = delete;
  BulkCopy& operator=(const BulkCopy&) = delete;
  // The rest of the data will not come, or be sent: the stream goes on without it. Returns when no thread is at its memory.
  virtual void cancel() = 0;

  const CUcontext context;
  const DeviceRows rows;

 protected:
  // From here on the stream waits for `done_`, which is taken. *reached: all before it is done. With an error neither is there.
  CUresult hold(const DeviceApi& api, CUstream stream, CUevent* reached);

  const std::shared_ptr<EventPool> events_;
  const std::shared_ptr<SignalPool> signals_;
  Ring ring_;                 // empty: the CPU reaches the device's memory
  Signal* done_ = nullptr;    // the stream waits for it at the end of the copy
};

// The copies on their way. Any thread.
class BulkCopies {
 public:
  void add(uint64_t sequence, std::shared_ptr<BulkCopy> copy);
  void remove(uint64_t sequence);
  std::shared_ptr<BulkCopy> find(uint64_t sequence);
  // Waits until the executor has come to the command. Null: it announced no copy (or one that is over), or the session ends.
  std::shared_ptr<BulkCopy> await(uint64_t sequence);
  // Commands up to this one have been executed.
  void passed(uint64_t sequence);
  // Until no copy of `context` is on its way; false: the deadline came first.
  bool drain(CUcontext context, std::chrono::steady_clock::time_point deadline);
  // Those of one context, which is current.
  void cancel(CUcontext context);
  // await() waits no more.
  void end();

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::unordered_map<uint64_t, std::shared_ptr<BulkCopy>> copies_;
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
