// Pinned host memory through which the client's data goes to and from the device, in pieces of two sizes, pooled per
// context and bounded per session.
//
// acquire(), keep_until() and the rest belong to the executor's thread; give_back() to any. When the session's share is in
// use, acquire() waits for the device or the client to let go of a piece: the back-pressure of this client alone. Only
// when nothing moves (a stream that waits for something the client has yet to send) it takes more, up to a hard limit.
#pragma once
#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include "protocol/transport/direct_memory.h"
#include "server/worker/contexts.h"
#include "server/worker/dump.h"
#include "server/worker/session.h"

namespace gpupool::worker {

constexpr size_t kStagingBytes = 64u << 20;            // what a session uses as long as its copies move
constexpr size_t kMaxStagingBytes = size_t{1} << 30;   // what it may pin at all
constexpr size_t kLeastStagingBytes = 16u << 20;      // what copies need to move at all
constexpr size_t kLargePiece = 1u << 20;               // wire::kBulkChunkBytes
constexpr size_t kSmallPiece = 64u << 10;

struct StagingChunk {
  ContextState* context = nullptr;
  std::byte* data = nullptr;
  size_t size = 0;  // kLargePiece or kSmallPiece
  std::optional<transport::DirectMemory::Region> registered{};  // once, for as long as the piece is there
};

class Staging {
 public:
  // `moved_by` may be null. The tenant's limit of queued bytes holds here, from kLeastStagingBytes on.
  Staging(const DeviceApi& api, transport::DirectMemory* moved_by, Usage usage) : api_(api), moved_by_(moved_by), usage_(std::move(usage)) {}
  Staging(const Staging&) = delete;
  Staging& operator=(const Staging&) = delete;

  // A piece of at least `size` bytes (at most kLargePiece), with `context` current. Null: out of memory. `registered`: one that
  // DirectMemory, which there must be, can move from and to.
  StagingChunk* acquire(ContextState& context, size_t size, bool registered = false);
  // The same, but only what is there or may be had at once.
  StagingChunk* try_acquire(ContextState& context, size_t size, bool registered = false);
  void give_back(StagingChunk* chunk);
  // Comes back by itself once everything that `stream` was given so far has run.
  void keep_until(StagingChunk* chunk, StreamState& stream);
  // Comes back by itself once `event`, of the chunk's context, has passed; takes the event over.
  void keep_until(StagingChunk* chunk, CUevent event) { busy_.push_back({chunk, event}); }
  // A place for `size` (at most kSlabPart) bytes that many small copies of one stream share. Null: out of memory.
  static constexpr size_t kSlabPart = 16u << 10;
  std::byte* slab_place(StreamState& stream, size_t size);
  void close_slab(StreamState& stream);
  // The context is about to be destroyed (frees its pieces), or is gone and its memory with it.
  void drop_context(ContextState& context, bool gone);
  // Any thread.
  void describe(admin::WorkerDump& dump);

 private:
  struct Busy {
    StagingChunk* chunk;
    CUevent event;
  };
  struct Block {  // one pinned allocation: a large piece, or small ones
    void* memory;
    ContextState* context;
    std::vector<std::unique_ptr<StagingChunk>> pieces;
  };

  StagingChunk* take_idle(const ContextState& context, size_t size, bool registered);
  StagingChunk* take_grown(ContextState& context, size_t size, size_t limit, bool registered);
  StagingChunk* register_for_moving(StagingChunk* chunk);
  bool grow(ContextState& context, size_t size, size_t limit);
  bool shrink_others(const ContextState& context);
  bool collect();
  void unregister(const Block& block);

  const DeviceApi& api_;
  transport::DirectMemory* const moved_by_;
  const Usage usage_;
  std::mutex mutex_;  // idle_, returned_; never held during a driver call
  std::condition_variable returned_;
  std::vector<StagingChunk*> idle_;
  std::vector<Busy> busy_;  // executor's thread
  std::vector<Block> blocks_;
  std::atomic<size_t> total_{0};  // bytes; executor's thread changes it
  size_t registered_ = 0;        // pieces
  bool unregistrable_ = false;   // no more can be, as far as is known
  bool stalled_ = false;  // copies do not move: what they wait for may be a later command, so memory is not waited for
};

}  // namespace gpupool::worker
