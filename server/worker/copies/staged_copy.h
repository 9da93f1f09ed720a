// The device part of a bulk copy through staging memory: a few chunks, whatever the size of the copy, each
// with at most one copy and one event in the stream at a time. StagedIn copies filled chunks to the device;
// StagedOut copies rows from the device into chunks.
//
// take(), begin() and give_back(): executor's thread; everything else: any thread that has the context
// current.
#pragma once
#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <deque>
#include <memory>
#include <mutex>
#include <optional>
#include <unordered_map>
#include <utility>
#include <vector>

#include "server/worker/copies/bulk_copy.h"
#include "server/worker/copies/staging.h"

namespace gpupool::worker {

constexpr size_t kStagedChunks = 16;  // per copy; enough to overlap the device and the network

// Acquires up to kStagedChunks chunks, waiting at most for the first (`may_wait`). Returns none if out of
// memory. `registered`: usable by DirectMemory.
std::vector<StagingChunk*> take_chunks(Staging& staging, ContextState& context, uint64_t pieces,
                                       bool registered, bool may_wait);

class StagedIn {
 public:
  StagedIn(const DeviceApi& api, ContextState& context, const DeviceRows& rows)
      : api_(api), events_(context.events), rows_(rows) {}
  ~StagedIn();

  // Returns false if out of memory. `may_wait`: may wait for chunks of other copies.
  bool take(Staging& staging, ContextState& context, bool registered, bool may_wait);
  // True if there is a chunk for every piece, so that acquire() does not wait.
  bool holds_all() const { return taken_ >= rows_.pieces(); }
  // Call when the stream has reached the copy. Enqueues the chunks that are filled; later ones are enqueued
  // by filled().
  void begin(CUstream stream);
  // Waits for an unused chunk. Returns null after close(), if all are in use before begin(), or after
  // `longest`.
  StagingChunk* acquire(std::optional<std::chrono::milliseconds> longest = std::nullopt);
  void filled(StagingChunk* chunk, uint64_t piece);
  void put_back(StagingChunk* chunk);
  // Ends all waits of acquire(), current and future ones.
  void close();
  // Returns the first error of the device's copies.
  CUresult result();
  // Returns the chunks, each when the device has finished with it. No other thread may use the copy any more.
  void give_back(Staging& staging);

 private:
  struct Free {
    StagingChunk* chunk;
    CUevent used;  // event of the device's last copy from the chunk; null: none
  };
  void enqueue(StagingChunk* chunk, uint64_t piece);

  const DeviceApi& api_;
  const std::shared_ptr<EventPool> events_;
  const DeviceRows rows_;
  CUstream stream_ = nullptr;  // set by begin()
  size_t taken_ = 0;           // number of chunks
  std::mutex mutex_;           // guards the rest
  std::condition_variable changed_;
  std::deque<Free> free_;                                  // least recently used first
  std::vector<std::pair<StagingChunk*, uint64_t>> early_;  // filled before begin()
  bool begun_ = false;
  bool closed_ = false;
  CUresult result_ = CUDA_SUCCESS;
};

class StagedOut {
 public:
  StagedOut(const DeviceApi& api, ContextState& context, const DeviceRows& rows)
      : api_(api), events_(context.events), rows_(rows), pieces_(rows.pieces()) {}
  ~StagedOut();

  bool take(Staging& staging, ContextState& context, bool registered);
  // Call when the stream has reached the copy. After an error some pieces may be in progress.
  CUresult begin(CUstream stream);
  // Waits until the device has copied the next piece into its chunk. Returns nullopt after the last piece,
  // after close(), or after an error.
  std::optional<uint64_t> next();
  StagingChunk* chunk_of(uint64_t piece);
  // Reuses the piece's chunk for a later piece.
  void done(uint64_t piece);
  void close();
  CUresult result();
  // Returns the chunks. No other thread may use the copy any more.
  void give_back(Staging& staging, StreamState& stream);

 private:
  CUresult enqueue(uint64_t piece, StagingChunk* chunk);

  const DeviceApi& api_;
  const std::shared_ptr<EventPool> events_;
  const DeviceRows rows_;
  const uint64_t pieces_;
  CUstream stream_ = nullptr;
  std::vector<StagingChunk*> chunks_;
  std::mutex mutex_;  // guards the rest
  std::condition_variable changed_;
  std::unordered_map<uint64_t, StagingChunk*> used_;  // chunks by piece
  std::deque<std::pair<uint64_t, CUevent>> coming_;   // pieces that the device is copying
  uint64_t next_piece_ = 0;
  uint64_t delivered_ = 0;
  uint64_t done_ = 0;
  bool closed_ = false;
  CUresult result_ = CUDA_SUCCESS;
};

}  // namespace gpupool::worker
