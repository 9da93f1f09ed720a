#include "server/worker/remote_copy.h"

#include <algorithm>
#include <utility>

#include "server/worker/executor.h"

namespace gpupool::worker {

using Move = RemoteMemory::Move;

RemoteCopy::RemoteCopy(Executor& session, ContextState& context, const DeviceRows& rows, const Client& client, uint64_t sequence,
                       CUresult reply)
    : BulkCopy(&context, rows), session_(session), client_(client), sequence_(sequence), reply_(reply) {}

// A wait that never began has left its events.
RemoteCopy::~RemoteCopy() {
  for (const CUevent event : ready_) events_->give(event);
}

CUresult RemoteCopy::start(Executor& session, StreamState& stream, const DeviceRows& rows, const Client& client,
                           uint64_t sequence, CUresult reply) {
  auto copy = std::make_shared<RemoteCopy>(session, *stream.context, rows, client, sequence, reply);
  copy->done_ = copy->signals_->take();
  if (!copy->done_) return CUDA_ERROR_OUT_OF_MEMORY;
  ++copy->done_->value;
  const bool direct = rows.rows == 1 && session.memory.register_for_moving(rows.address, rows.width, &copy->spans_);
  session.copies.add(sequence, copy);
  const CUresult result = direct ? copy->enqueue_direct(stream) : copy->enqueue_staged(stream);
  if (result != CUDA_SUCCESS) session.copies.remove(sequence);
  return result;
}

CUresult RemoteCopy::enqueue_direct(StreamState& stream) {
  CUevent event = nullptr;
  if (const CUresult result = hold(session_.api, stream.stream, &event); result != CUDA_SUCCESS) return result;
  uint64_t at = rows.address;
  for (const DeviceSpan& span : spans_) {
    pieces_ += (span.end - at + kLargePiece - 1) / kLargePiece;
    at = span.end;
  }
  written_past_cpu_ = client_.to_device && !session_.memory.cpu_reaches() && session_.api.cuFlushGPUDirectRDMAWrites;
  ready_.push_back(event);
  hand_over(stream);
  return CUDA_SUCCESS;
}

CUresult RemoteCopy::enqueue_staged(StreamState& stream) {
  pieces_ = rows.pieces();
  spans_.clear();
  if (!ring_.take(session_.staging, *stream.context, pieces_, true)) {
    signals_->give(done_);
    return CUDA_ERROR_OUT_OF_MEMORY;
  }
  CUresult result;
  if (client_.to_device) {
    uint64_t enqueued = 0;
    result = ring_.enqueue_in(session_.api, *signals_, *events_, rows, stream.stream, &enqueued);
    ready_.swap(ring_.events);
    waits_from_ = ring_.chunks.size();
  } else {
    result = ring_.enqueue_out(session_.api, *signals_, *events_, rows, stream.stream, &ready_);
    if (result == CUDA_SUCCESS) result = signals_->wait(*done_, done_->value, stream.stream);
  }
  ring_.release_after(session_.staging, stream);
  if (result == CUDA_SUCCESS) {
    hand_over(stream);
    return CUDA_SUCCESS;
  }
  // What is enqueued already must not wait for pieces that nobody will move.
  for (Signal* const signal : ring_.signals) signals_->raise(*signal, signal->value);
  signals_->raise(*done_, done_->value);
  ring_.give_back(*events_, *signals_);
  signals_->give(done_);
  return result;
}

void RemoteCopy::hand_over(StreamState& stream) {
  unmoved_ = pieces_ + (client_.to_device ? 0 : 1);
  if (waits_from_ != 0) submit(0, std::min(waits_from_, pieces_));
  if (ready_.empty()) return;
  if (ready_.size() == 1 && session_.api.cuEventQuery(ready_.front()) == CUDA_SUCCESS) return queue_ready();
  if (const auto lane = stream.remote_lane.lock(); lane && lane->push(shared_from_this())) return;
  const auto lane = std::make_shared<RemoteLane>();
  stream.remote_lane = lane;
  lane->push(shared_from_this());
  const bool taken = session_.waits.submit(context, [lane, context = context, &api = session_.api] {
    make_current(api, context);
    lane->serve();
    make_current(api, nullptr);
  });
  if (!taken) lane->serve();  // no thread to be had: the executor waits itself
}

bool RemoteLane::push(std::shared_ptr<RemoteCopy> copy) {
  const std::lock_guard lock(mutex_);
  if (!over_) copies_.push_back(std::move(copy));
  return !over_;
}

void RemoteLane::serve() {
  while (true) {
    std::shared_ptr<RemoteCopy> copy;
    {
      const std::lock_guard lock(mutex_);
      over_ = copies_.empty();
      if (over_) return;
      copy = std::move(copies_.front());
      copies_.pop_front();
    }
    copy->queue_ready();
  }
}

void RemoteCopy::queue_ready() {
  const bool direct = !spans_.empty();
  CUresult result = CUDA_SUCCESS;
  for (uint64_t i = 0; i < ready_.size(); ++i) {
    if (result == CUDA_SUCCESS) {
      result = session_.api.cuEventSynchronize(ready_[i]);
      if (result != CUDA_SUCCESS) finish(result);
      else if (direct) submit(0, pieces_);
      else submit(waits_from_ + i, waits_from_ + i + 1);
    }
    events_->give(ready_[i]);
  }
  ready_.clear();
}

// The flush is queued behind the last piece.
void RemoteCopy::submit(uint64_t first, uint64_t last) {
  if (last == pieces_ && !client_.to_device) ++last;
  session_.remote.submit(shared_from_this(), first, last);
}

std::optional<Move> RemoteCopy::begin(uint64_t piece) {
  {
    const std::lock_guard lock(mutex_);
    if (finished_) return std::nullopt;
    ++active_;
  }
  if (piece == pieces_) {
    return Move{.what = Move::flush, .remote_key = client_.key, .remote = client_.memory + rows.total() - 1, .bytes = 1};
  }
  Move move{.what = client_.to_device ? Move::read : Move::write, .remote_key = client_.key};
  if (spans_.empty()) {
    const StagingChunk& chunk = *ring_.chunks[ring_.slot(piece)];
    move.local = chunk.data;
    move.local_key = chunk.registered->local_key;
    move.remote = client_.memory + piece * rows.piece_bytes();
    move.bytes = static_cast<uint32_t>(rows.size_of(piece));
    return move;
  }
  const uint64_t at = rows.address + done_bytes_;
  const DeviceSpan& span = spans_[span_];
  move.local = reinterpret_cast<std::byte*>(at);
  move.local_key = span.key;
  move.remote = client_.memory + done_bytes_;
  move.bytes = static_cast<uint32_t>(std::min<uint64_t>(kLargePiece, span.end - at));
  done_bytes_ += move.bytes;
  if (at + move.bytes == span.end) ++span_;
  return move;
}

void RemoteCopy::end(uint64_t piece) {
  bool over = false;
  {
    const std::lock_guard lock(mutex_);
    over = --unmoved_ == 0 || finished_;
  }
  if (!over && piece < ring_.pieces) {
    const CUcontext before = current_context();
    make_current(session_.api, context);
    signals_->raise(*ring_.signals[ring_.slot(piece)], ring_.round(piece));
    make_current(session_.api, before);
  }
  {
    const std::lock_guard lock(mutex_);
    --active_;
    if (over) finished_ = true;
  }
  release();
}

void RemoteCopy::finish(CUresult result) {
  const CUcontext before = current_context();
  make_current(session_.api, context);
  {
    const std::lock_guard lock(mutex_);
    if (!finished_) {
      finished_ = true;
      result_ = result;
      // A thread may be waiting for the device, which waits for a piece that does not come.
      for (Signal* const signal : ring_.signals) signals_->raise(*signal, signal->value);
    }
  }
  make_current(session_.api, before);
  release();
}

// Ends the copy, when it is over and nothing of it is under way any more.
void RemoteCopy::release() {
  {
    const std::lock_guard lock(mutex_);
    if (!finished_ || active_ != 0 || releasing_) return;
    releasing_ = true;
  }
  const DeviceApi& api = session_.api;
  const CUcontext before = current_context();
  make_current(api, context);
  if (written_past_cpu_) {
    api.cuFlushGPUDirectRDMAWrites(CU_FLUSH_GPU_DIRECT_RDMA_WRITES_TARGET_CURRENT_CTX, CU_FLUSH_GPU_DIRECT_RDMA_WRITES_TO_OWNER);
  }
  session_.answer(sequence_, result_ == CUDA_SUCCESS ? reply_ : result_);
  for (Signal* const signal : ring_.signals) signals_->raise(*signal, signal->value);
  signals_->raise(*done_, done_->value);
  ring_.give_back(*events_, *signals_);
  signals_->give(done_);
  make_current(api, before);
  {
    const std::lock_guard lock(mutex_);
    released_ = true;
  }
  idle_.notify_all();
  session_.copies.remove(sequence_);
}

void RemoteCopy::cancel() {
  finish(CUDA_ERROR_CONTEXT_IS_DESTROYED);
  std::unique_lock lock(mutex_);
  idle_.wait(lock, [this] { return released_; });
}

}  // namespace gpupool::worker
