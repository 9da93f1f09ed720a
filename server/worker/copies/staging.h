// Pinned host memory through which the client's data travels to and from the device, in chunks of two sizes,
// pooled per context and limited per session.
//
// Executor's thread, except give_back(): any thread. When the session's normal share is in use, acquire()
// waits until the device or the client releases a chunk, which throttles this client only. If nothing is
// released (a stream may be waiting for something that the client has yet to send), it allocates more, up to
// a hard limit.
#pragma once
#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include "protocol/transport/direct_memory.h"
#include "server/worker/session/contexts.h"
#include "server/worker/session/dump.h"
#include "server/worker/session/session_start.h"

namespace gpupool::worker {

constexpr size_t kStagingBytes = 64u << 20;           // normal share of a session
constexpr size_t kMaxStagingBytes = size_t{1} << 30;  // hard limit of a session
constexpr size_t kLeastStagingBytes = 16u << 20;      // minimum that copies need, whatever the tenant's limit
constexpr size_t kLargePiece = 1u << 20;              // bytes; equal to wire::kBulkChunkBytes
constexpr size_t kSmallPiece = 64u << 10;

struct StagingChunk {
  ContextState* context = nullptr;
  std::byte* data = nullptr;
  size_t size = 0;                                              // kLargePiece or kSmallPiece
  std::optional<transport::DirectMemory::Region> registered{};  // set once and kept for the chunk's lifetime
};

class Staging {
 public:
  // `direct_memory` may be null. The tenant's limit of queued bytes applies beyond kLeastStagingBytes.
  Staging(const DeviceApi& api, transport::DirectMemory* direct_memory, Usage usage)
      : api_(api), direct_memory_(direct_memory), usage_(std::move(usage)) {}
  Staging(const Staging&) = delete;
  Staging& operator=(const Staging&) = delete;

  // Acquires a chunk of at least `size` bytes (at most kLargePiece); `context` must be current. Returns null
  // if out of memory, or if a kernel has broken the context; see refusal(). `registered`: usable by
  // DirectMemory, which must be available.
  StagingChunk* acquire(ContextState& context, size_t size, bool registered = false);
  // Like acquire(), but without waiting.
  StagingChunk* try_acquire(ContextState& context, size_t size, bool registered = false);
  // Why the last acquire(), try_acquire() or slab_place() returned null.
  CUresult refusal() const { return refusal_; }
  void give_back(StagingChunk* chunk);
  // Gives the chunk back when the stream's present work is done.
  void keep_until(StagingChunk* chunk, StreamState& stream);
  // Gives the chunk back when `event`, of the chunk's context, has passed; takes ownership of the event.
  void keep_until(StagingChunk* chunk, CUevent event) { busy_.push_back({chunk, event}); }
  // Returns space for `size` bytes (at most kSlabPart) in a chunk that small copies of the stream share, or
  // null if out of memory.
  static constexpr size_t kSlabPart = 16u << 10;
  std::byte* slab_place(StreamState& stream, size_t size);
  void close_slab(StreamState& stream);
  // Call before the context is destroyed (frees its chunks), or with `gone` after that (forgets them).
  void drop_context(ContextState& context, bool gone);
  // Any thread.
  void describe(admin::WorkerDump& dump);

 private:
  struct Busy {
    StagingChunk* chunk;
    CUevent event;
  };
  struct Block {  // one pinned allocation: one large chunk, or small ones
    void* memory;
    ContextState* context;
    std::vector<std::unique_ptr<StagingChunk>> pieces;
  };

  StagingChunk* take_idle(const ContextState& context, size_t size, bool registered);
  StagingChunk* take_grown(ContextState& context, size_t size, size_t limit, bool registered);
  StagingChunk* register_for_rdma(StagingChunk* chunk);
  bool grow(ContextState& context, size_t size, size_t limit);
  bool shrink_others(const ContextState& context);
  bool collect();
  void unregister(const Block& block);

  const DeviceApi& api_;
  transport::DirectMemory* const direct_memory_;
  const Usage usage_;
  std::mutex mutex_;  // guards idle_; never held during a driver call
  std::condition_variable returned_;
  std::vector<StagingChunk*> idle_;
  std::vector<Busy> busy_;  // executor's thread
  std::vector<Block> blocks_;
  std::atomic<size_t> total_{0};  // bytes; written by the executor's thread
  size_t registered_ = 0;         // number of registered chunks
  bool unregistrable_ = false;    // the last registration failed
  CUresult refusal_ = CUDA_ERROR_OUT_OF_MEMORY;
  // Copies do not progress, perhaps because they wait for a later command: allocate instead of waiting.
  bool stalled_ = false;
};

}  // namespace gpupool::worker
