#include "server/worker/copies/staged_copy.h"

#include <algorithm>
#include <thread>

namespace gpupool::worker {
namespace {

// Records an event behind a copy from or to a chunk. On failure, waits until the device has finished the copy
// and returns null.
CUevent record_behind(const DeviceApi& api, EventPool& events, CUstream stream, CUresult* result) {
  const CUevent event = events.take();
  *result = event ? api.cuEventRecord(event, stream) : events.take_error();
  if (*result == CUDA_SUCCESS) return event;
  if (event) events.give(event);
  api.cuStreamSynchronize(stream);
  return nullptr;
}

// Polls, because the driver has no event wait with a timeout. Returns true if the event has completed or
// failed.
bool wait_until(const DeviceApi& api, CUevent event, std::chrono::steady_clock::time_point stop) {
  std::chrono::microseconds between_looks{20};
  while (api.cuEventQuery(event) == CUDA_ERROR_NOT_READY) {
    if (std::chrono::steady_clock::now() >= stop) return false;
    std::this_thread::sleep_for(between_looks);
    between_looks = std::min<std::chrono::microseconds>(between_looks * 2, std::chrono::milliseconds(1));
  }
  return true;
}

}  // namespace

std::vector<StagingChunk*> take_chunks(Staging& staging, ContextState& context, uint64_t pieces,
                                       bool registered, bool may_wait) {
  std::vector<StagingChunk*> chunks;
  while (chunks.size() < std::min<uint64_t>(kStagedChunks, pieces)) {
    StagingChunk* const chunk = chunks.empty() && may_wait
                                    ? staging.acquire(context, kLargePiece, registered)
                                    : staging.try_acquire(context, kLargePiece, registered);
    if (!chunk) break;
    chunks.push_back(chunk);
  }
  return chunks;
}

// --- To the device ---

StagedIn::~StagedIn() {
  for (const Free& free : free_) {
    if (free.used) events_->give(free.used);
  }
}

bool StagedIn::take(Staging& staging, ContextState& context, bool registered, bool may_wait) {
  for (StagingChunk* const chunk : take_chunks(staging, context, rows_.pieces(), registered, may_wait))
    free_.push_back({chunk, nullptr});
  taken_ = free_.size();
  return taken_ != 0;
}

void StagedIn::begin(CUstream stream) {
  stream_ = stream;
  std::vector<std::pair<StagingChunk*, uint64_t>> early;
  {
    const std::lock_guard lock(mutex_);
    begun_ = true;
    early.swap(early_);
  }
  for (const auto& [chunk, piece] : early) enqueue(chunk, piece);
}

StagingChunk* StagedIn::acquire(std::optional<std::chrono::milliseconds> longest) {
  const auto stop = std::chrono::steady_clock::now() + longest.value_or(std::chrono::milliseconds(0));
  Free taken{};
  {
    const Waiting waiting("staging memory of its copy");
    std::unique_lock lock(mutex_);
    const auto ready = [this] { return closed_ || !free_.empty() || !begun_; };
    if (longest)
      changed_.wait_until(lock, stop, ready);
    else
      changed_.wait(lock, ready);
    if (closed_ || free_.empty()) return nullptr;
    taken = free_.front();
    free_.pop_front();
  }
  if (!taken.used) return taken.chunk;
  if (!longest) {
    api_.cuEventSynchronize(taken.used);
  } else if (!wait_until(api_, taken.used, stop)) {
    {
      const std::lock_guard lock(mutex_);
      free_.push_front(taken);
    }
    changed_.notify_one();
    return nullptr;
  }
  events_->give(taken.used);
  return taken.chunk;
}

void StagedIn::filled(StagingChunk* chunk, uint64_t piece) {
  {
    const std::lock_guard lock(mutex_);
    if (!begun_) {
      early_.emplace_back(chunk, piece);
      return;
    }
  }
  enqueue(chunk, piece);
}

void StagedIn::enqueue(StagingChunk* chunk, uint64_t piece) {
  CUevent used = nullptr;
  CUresult result = copy_piece_in(api_, rows_, piece, chunk->data, stream_);
  if (result == CUDA_SUCCESS) used = record_behind(api_, *events_, stream_, &result);
  {
    const std::lock_guard lock(mutex_);
    if (result_ == CUDA_SUCCESS) result_ = result;
    free_.push_back({chunk, used});
  }
  changed_.notify_one();
}

void StagedIn::put_back(StagingChunk* chunk) {
  const std::lock_guard lock(mutex_);
  free_.push_back({chunk, nullptr});
}

void StagedIn::close() {
  {
    const std::lock_guard lock(mutex_);
    closed_ = true;
  }
  changed_.notify_all();
}

CUresult StagedIn::result() {
  const std::lock_guard lock(mutex_);
  return result_;
}

void StagedIn::give_back(Staging& staging) {
  const std::lock_guard lock(mutex_);
  for (const auto& [chunk, piece] : early_) staging.give_back(chunk);
  for (const Free& free : free_) {
    if (free.used)
      staging.keep_until(free.chunk, free.used);
    else
      staging.give_back(free.chunk);
  }
  early_.clear();
  free_.clear();
}

// --- From the device ---

StagedOut::~StagedOut() {
  for (const auto& [piece, event] : coming_) events_->give(event);
}

bool StagedOut::take(Staging& staging, ContextState& context, bool registered) {
  chunks_ = take_chunks(staging, context, pieces_, registered, true);
  return !chunks_.empty();
}

CUresult StagedOut::begin(CUstream stream) {
  stream_ = stream;
  next_piece_ = chunks_.size();
  for (uint64_t piece = 0; piece < chunks_.size(); ++piece) {
    if (const CUresult result = enqueue(piece, chunks_[piece]); result != CUDA_SUCCESS) return result;
  }
  return CUDA_SUCCESS;
}

CUresult StagedOut::enqueue(uint64_t piece, StagingChunk* chunk) {
  CUevent ready = nullptr;
  CUresult result = copy_piece_out(api_, rows_, piece, chunk->data, stream_);
  if (result == CUDA_SUCCESS) ready = record_behind(api_, *events_, stream_, &result);
  {
    const std::lock_guard lock(mutex_);
    if (result_ == CUDA_SUCCESS) result_ = result;
    if (ready) {
      used_[piece] = chunk;
      coming_.emplace_back(piece, ready);
    }
  }
  changed_.notify_one();
  return result;
}

std::optional<uint64_t> StagedOut::next() {
  const Waiting waiting("the next piece of its copy");
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [this] {
    return closed_ || result_ != CUDA_SUCCESS || !coming_.empty() || delivered_ == pieces_;
  });
  if (closed_ || result_ != CUDA_SUCCESS || coming_.empty()) return std::nullopt;
  const auto [piece, ready] = coming_.front();
  coming_.pop_front();
  ++delivered_;
  lock.unlock();
  const CUresult result = api_.cuEventSynchronize(ready);
  events_->give(ready);
  if (result == CUDA_SUCCESS) return piece;
  lock.lock();
  result_ = result;
  return std::nullopt;
}

StagingChunk* StagedOut::chunk_of(uint64_t piece) {
  const std::lock_guard lock(mutex_);
  return used_.at(piece);
}

void StagedOut::done(uint64_t piece) {
  StagingChunk* chunk = nullptr;
  uint64_t next = 0;
  {
    const std::lock_guard lock(mutex_);
    chunk = used_.at(piece);
    used_.erase(piece);
    ++done_;
    if (closed_ || next_piece_ == pieces_) return;
    next = next_piece_++;
  }
  (void)enqueue(next, chunk);
}

void StagedOut::close() {
  {
    const std::lock_guard lock(mutex_);
    closed_ = true;
  }
  changed_.notify_all();
}

CUresult StagedOut::result() {
  const std::lock_guard lock(mutex_);
  return result_;
}

void StagedOut::give_back(Staging& staging, StreamState& stream) {
  const bool all_done = [this] {
    const std::lock_guard lock(mutex_);
    return done_ == pieces_;
  }();
  for (StagingChunk* const chunk : chunks_) {
    if (all_done)
      staging.give_back(chunk);
    else
      staging.keep_until(chunk, stream);
  }
  chunks_.clear();
}

}  // namespace gpupool::worker
