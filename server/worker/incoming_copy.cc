#include "server/worker/incoming_copy.h"

#include <utility>

#include "server/worker/executor.h"

namespace gpupool::worker {

IncomingCopy::IncomingCopy(Executor& session, ContextState* context, const DeviceRows& rows)
    : BulkCopy(context, rows), session_(session), seen_(rows.pieces()), missing_(rows.pieces()) {}

void IncomingCopy::prepare(ContextState& context) {
  staged_.emplace(session_.api, context, rows);
  if (staged_->take(session_.staging, context, false, false)) decide(Way::staged);
  else staged_.reset();
}

void IncomingCopy::decide(Way way) {
  {
    const std::lock_guard lock(mutex_);
    if (way_ == Way::nowhere) return;
    way_ = way;
  }
  changed_.notify_all();
}

IncomingCopy::Way IncomingCopy::choose_way(StreamState& stream) {
  if (staged_) return Way::staged;
  const bool reachable = session_.memory.reachable(rows.address, (rows.rows - 1) * rows.pitch + rows.width);
  if (reachable && session_.is_idle(stream)) return Way::direct;
  staged_.emplace(session_.api, *stream.context, rows);
  return staged_->take(session_.staging, *stream.context, false, true) ? Way::staged : Way::nowhere;
}

CUresult IncomingCopy::begin(StreamState& stream, bool orders_streams) {
  const Way way = choose_way(stream);
  if (way == Way::staged) staged_->begin(stream.stream);
  {
    const std::lock_guard lock(mutex_);
    if (!over_ && way != Way::nowhere) {
      gate_ = session_.gates.close(stream, [self = shared_from_this(), orders_streams](StreamState& stream) { self->finish(stream, orders_streams); },
                                   orders_streams);
    }
  }
  decide(way);
  if (way == Way::nowhere) return CUDA_ERROR_OUT_OF_MEMORY;
  if (!gate_) finish(stream, orders_streams);  // all of it was there already
  return CUDA_SUCCESS;
}

void IncomingCopy::begin_nowhere() {
  if (staged_) staged_->close();
  decide(Way::nowhere);
}

// The data is there, or will not come, and the stream's context is current.
void IncomingCopy::finish(StreamState& stream, bool orders_streams) {
  if (staged_) {
    session_.defer(staged_->result());
    staged_->give_back(session_.staging);
  }
  if (orders_streams) session_.contexts.order_all_after(stream);
}

Result<bool> IncomingCopy::receive(compression::PieceReader& reader, uint64_t offset, std::span<std::byte> scratch) {
  const uint64_t piece = offset / rows.piece_bytes();
  if (offset % rows.piece_bytes() != 0 || piece >= rows.pieces() || !reader.fits(rows.size_of(piece))) {
    return Error{ErrorCode::malformed, "a piece that no copy has"};
  }
  Way way;
  {
    std::unique_lock lock(mutex_);
    if (seen_[piece]) return Error{ErrorCode::malformed, "a piece came twice"};
    seen_[piece] = true;
    changed_.wait(lock, [this] { return way_ != Way::undecided; });
    ++active_;
    way = way_;
  }
  const auto received = receive_piece(reader, way, piece, scratch);
  bool last = false;
  {
    const std::lock_guard lock(mutex_);
    --active_;
    last = received.ok() && --missing_ == 0;
    over_ |= last;
    if (over_ && gate_) gate_->open();
  }
  changed_.notify_all();
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
  if (way == Way::staged) {
    make_current(session_.api, context);
    StagingChunk* const chunk = staged_->acquire();
    const auto received = reader.read(chunk ? std::span(chunk->data, packed.size()) : packed);
    if (chunk && received) staged_->filled(chunk, piece);
    else if (chunk) staged_->put_back(chunk);
    make_current(session_.api, nullptr);
    return received;
  }
  const auto received = reader.read(packed);
  if (received && way == Way::direct) scatter(rows, offset, packed);
  return received;
}

void IncomingCopy::cancel() {
  begin_nowhere();
  std::unique_lock lock(mutex_);
  way_ = Way::nowhere;
  changed_.wait(lock, [this] { return active_ == 0; });
  over_ = true;
  if (gate_) gate_->open();
  else if (staged_) staged_->give_back(session_.staging);
}

}  // namespace gpupool::worker
