#include "server/worker/incoming_copy.h"

#include <utility>

#include "server/worker/executor.h"

namespace gpupool::worker {

IncomingCopy::IncomingCopy(const DeviceApi& api, ContextState* context, const DeviceRows& rows)
    : BulkCopy(context, rows), api_(api), seen_(rows.pieces()), missing_(rows.pieces()) {}

std::shared_ptr<IncomingCopy> IncomingCopy::start(Executor& session, StreamState* stream, const DeviceRows& rows,
                                                  CUresult* result) {
  auto copy = std::make_shared<IncomingCopy>(session.api, stream ? stream->context : nullptr, rows);
  if (!stream) return copy;
  const bool direct = session.memory.reachable(rows.address, (rows.rows - 1) * rows.pitch + rows.width) &&
                      session.is_idle(*stream);
  *result = direct ? copy->enqueue_direct(*stream) : copy->enqueue_staged(session, *stream);
  return copy;
}

CUresult IncomingCopy::enqueue_direct(StreamState& stream) {
  done_ = signals_->take();
  if (!done_) return CUDA_ERROR_OUT_OF_MEMORY;
  const CUresult result = signals_->wait(*done_, ++done_->value, stream.stream);
  if (result == CUDA_SUCCESS) way_ = Way::direct;
  return result;
}

CUresult IncomingCopy::enqueue_staged(Executor& session, StreamState& stream) {
  if (!ring_.take(session.staging, *stream.context, rows.pieces(), false)) return CUDA_ERROR_OUT_OF_MEMORY;
  way_ = Way::staged;
  const CUresult result = ring_.enqueue_in(api_, *signals_, *events_, rows, stream.stream, &enqueued_);
  ring_.release_after(session.staging, stream);
  return result;
}

Result<bool> IncomingCopy::receive(compression::PieceReader& reader, uint64_t offset, std::span<std::byte> scratch) {
  const uint64_t piece = offset / rows.piece_bytes();
  if (offset % rows.piece_bytes() != 0 || piece >= rows.pieces() || !reader.fits(rows.size_of(piece))) {
    return Error{ErrorCode::malformed, "a piece that no copy has"};
  }
  Way way;
  {
    const std::lock_guard lock(mutex_);
    if (seen_[piece]) return Error{ErrorCode::malformed, "a piece came twice"};
    seen_[piece] = true;
    ++active_;
    way = way_;
  }
  const auto received = receive_piece(reader, way, piece, scratch);
  bool last = false;
  {
    const std::lock_guard lock(mutex_);
    --active_;
    last = received.ok() && --missing_ == 0;
    if (last) finish();
  }
  idle_.notify_all();
  if (!received) return received.error();
  return last;
}

Result<void> IncomingCopy::receive_piece(compression::PieceReader& reader, Way way, uint64_t piece,
                                         std::span<std::byte> scratch) {
  const std::span<std::byte> packed = scratch.first(rows.size_of(piece));
  const uint64_t offset = piece * rows.piece_bytes();
  if (way == Way::direct && rows.rows == 1) {
    return reader.read({reinterpret_cast<std::byte*>(rows.address + offset), packed.size()});
  }
  if (way == Way::staged && piece < enqueued_) {
    make_current(api_, context);
    if (piece >= ring_.chunks.size()) api_.cuEventSynchronize(ring_.events[piece - ring_.chunks.size()]);
    const auto received = reader.read({ring_.chunks[ring_.slot(piece)]->data, packed.size()});
    if (received) signals_->raise(*ring_.signals[ring_.slot(piece)], ring_.round(piece));
    make_current(api_, nullptr);
    return received;
  }
  const auto received = reader.read(packed);
  if (received && way == Way::direct) scatter(rows, offset, packed);
  return received;
}

// Nothing more will come: mutex_ held.
void IncomingCopy::finish() {
  if (!context) return;
  make_current(api_, context);
  if (done_) {
    signals_->raise(*done_, done_->value);
    signals_->give(std::exchange(done_, nullptr));
  }
  // A piece that never got its place in the stream may still be waited for there.
  for (Signal* const signal : ring_.signals) signals_->raise(*signal, signal->value);
  ring_.give_back(*events_, *signals_);
  make_current(api_, nullptr);
}

void IncomingCopy::cancel() {
  std::unique_lock lock(mutex_);
  way_ = Way::nowhere;
  if (context) {
    // A thread may be waiting for the device, which waits for a piece that does not come.
    make_current(api_, context);
    for (Signal* const signal : ring_.signals) signals_->raise(*signal, signal->value);
  }
  idle_.wait(lock, [this] { return active_ == 0; });
  finish();
}

}  // namespace gpupool::worker
