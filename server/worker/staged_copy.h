// The device's part of a bulk copy that goes through staging memory: a few chunks, each with at most one copy and one event in the stream at a
// time, whatever the size of the copy. StagedIn copies filled chunks to the device, StagedOut copies rows from the device into chunks.
//
// take(), begin() and give_back() belong to the executor's thread; everything else may be called by any thread that has the context current.
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

#include "server/worker/bulk_copy.h"
#include "server/worker/staging.h"

namespace gpupool::worker {

constexpr size_t kStagedChunks = 16;  // of one copy: as much as the device and the network need to overlap

// At least one chunk for a copy of `pieces`, without waiting for more. Empty: out of memory. `registered`: for DirectMemory, too.
std::vector<StagingChunk*> take_chunks(Staging& staging, ContextState& context, uint64_t pieces, bool registered, bool may_wait);

class StagedIn {
 public:
  StagedIn(const DeviceApi& api, ContextState& context, const DeviceRows& rows) : api_(api), events_(context.events), rows_(rows) {}
  ~StagedIn();

  // False: out of memory. `may_wait`: for chunks of other copies.
  bool take(Staging& staging, ContextState& context, bool registered, bool may_wait);
  // There is a chunk for every piece: acquire() does not wait.
  bool holds_all() const { return taken_ >= rows_.pieces(); }
  // The stream has come to the copy: what was filled before is copied now, the rest when it is filled.
  void begin(CUstream stream);
  // Waits for a chunk that nobody uses. Null: after close(), there is none before begin(), or none came within `longest`.
  StagingChunk* acquire(std::optional<std::chrono::milliseconds> longest = std::nullopt);
  void filled(StagingChunk* chunk, uint64_t piece);
  void put_back(StagingChunk* chunk);
  // acquire() waits no more.
  void close();
  // The first error of the device's copies.
  CUresult result();
  // No other thread uses the copy any more. The chunks go back as the device is done with them.
  void give_back(Staging& staging);

 private:
  struct Free {
    StagingChunk* chunk;
    CUevent used;  // the device's last copy from it; null: none
  };
  void enqueue(StagingChunk* chunk, uint64_t piece);

  const DeviceApi& api_;
  const std::shared_ptr<EventPool> events_;
  const DeviceRows rows_;
  CUstream stream_ = nullptr;  // from begin() on
  size_t taken_ = 0;           // chunks
  std::mutex mutex_;           // what follows
  std::condition_variable changed_;
  std::deque<Free> free_;      // the longest unused first
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
  // The stream has come to the copy. With an error some pieces may be on their way.
  CUresult begin(CUstream stream);
  // Waits until the device has copied the next piece into its chunk. Nullopt: that was the last one, or after close() or an error.
  std::optional<uint64_t> next();
  StagingChunk* chunk_of(uint64_t piece);
  // The piece's chunk is used for one of the pieces to come.
  void done(uint64_t piece);
  void close();
  CUresult result();
  // No other thread uses the copy any more.
  void give_back(Staging& staging, StreamState& stream);

 private:
  CUresult enqueue(uint64_t piece, StagingChunk* chunk);

  const DeviceApi& api_;
  const std::shared_ptr<EventPool> events_;
  const DeviceRows rows_;
  const uint64_t pieces_;
  CUstream stream_ = nullptr;
  std::vector<StagingChunk*> chunks_;
  std::mutex mutex_;  // what follows
  std::condition_variable changed_;
  std::unordered_map<uint64_t, StagingChunk*> used_;       // by piece
  std::deque<std::pair<uint64_t, CUevent>> coming_;        // pieces that the device copies
  uint64_t next_piece_ = 0;
  uint64_t delivered_ = 0;
  uint64_t done_ = 0;
  bool closed_ = false;
  CUresult result_ = CUDA_SUCCESS;
};

}  // namespace gpupool::worker
