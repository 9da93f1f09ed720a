#include "server/worker/incoming_copy.h"

#include <cstring>
#include <utility>

#include "server/worker/executor.h"

namespace gpupool::worker {
namespace {

constexpr uint64_t kMostEarlyBytes = 256u << 20;  // of all copies of a session, beside their staging memory

}  // namespace

IncomingCopy::IncomingCopy(Executor& session, uint64_t sequence, ContextState* context, const DeviceRows& rows)
    : BulkCopy(context, rows), session_(session), sequence_(sequence), seen_(rows.pieces()), missing_(rows.pieces()) {}

void IncomingCopy::prepare(ContextState& context) {
  staged_.emplace(session_.api, context, rows);
  if (!staged_->take(session_.staging, context, false, false)) return staged_.reset();
  const std::lock_guard lock(mutex_);
  way_ = Way::staged;
}

// The stream has come to the copy, or never will.
void IncomingCopy::decide(Way way) {
  std::map<uint64_t, std::vector<std::byte>> early;
  {
    const std::lock_guard lock(mutex_);
    if (way_ != Way::nowhere) way_ = way;
    begun_ = true;
    early.swap(early_);
    active_ += !early.empty();
  }
  changed_.notify_all();
  if (early.empty()) return;
  const auto pieces = std::make_shared<const std::map<uint64_t, std::vector<std::byte>>>(std::move(early));
  const bool taken = context && session_.waits.submit(context, [self = shared_from_this(), pieces] {
    make_current(self->session_.api, self->context);
    self->pass_on(*pieces);
    make_current(self->session_.api, nullptr);
  });
  if (!taken) pass_on(*pieces);  // no thread to be had: the executor waits itself
}

void IncomingCopy::pass_on(const std::map<uint64_t, std::vector<std::byte>>& pieces) {
  for (const auto& [piece, data] : pieces) pass_on(piece, data);
  count(pieces.size());
}

// The caller was counted in active_.
void IncomingCopy::count(uint64_t received) {
  bool last = false;
  {
    const std::lock_guard lock(mutex_);
    --active_;
    missing_ -= received;
    last = received != 0 && missing_ == 0;
    over_ |= last;
    if (over_ && gate_) gate_->open();
  }
  changed_.notify_all();
  if (last) session_.copies.remove(sequence_);
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
  decide(way);
  if (way == Way::nowhere) return CUDA_ERROR_OUT_OF_MEMORY;
  {
    const std::lock_guard lock(mutex_);
    if (!over_) {
      gate_ = session_.gates.close(stream, [self = shared_from_this(), orders_streams](StreamState& stream) { self->finish(stream, orders_streams); },
                                   orders_streams);
      return CUDA_SUCCESS;
    }
  }
  finish(stream, orders_streams);  // all of it was there already
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

Result<void> IncomingCopy::receive(compression::PieceReader& reader, uint64_t offset, std::span<std::byte> scratch) {
  const uint64_t piece = offset / rows.piece_bytes();
  if (offset % rows.piece_bytes() != 0 || piece >= rows.pieces() || !reader.fits(rows.size_of(piece))) {
    return Error{ErrorCode::malformed, "a piece that no copy has"};
  }
  {
    const std::lock_guard lock(mutex_);
    if (seen_[piece]) return Error{ErrorCode::malformed, "a piece came twice"};
    seen_[piece] = true;
    ++active_;
  }
  bool kept = false;
  auto received = receive_piece(reader, piece, scratch, &kept);
  count(received.ok() && !kept ? 1 : 0);
  return received;
}

Result<void> IncomingCopy::receive_piece(compression::PieceReader& reader, uint64_t piece, std::span<std::byte> scratch, bool* kept) {
  const std::span<std::byte> packed = scratch.first(rows.size_of(piece));
  Way way;
  {
    std::unique_lock lock(mutex_);
    while (true) {
      way = way_;
      if (way == Way::staged) {
        make_current(session_.api, context);
        lock.unlock();
        StagingChunk* const chunk = staged_->acquire();
        if (chunk) {
          const auto received = reader.read({chunk->data, packed.size()});
          if (received) staged_->filled(chunk, piece);
          else staged_->put_back(chunk);
          make_current(session_.api, nullptr);
          return received;
        }
        lock.lock();
        make_current(session_.api, nullptr);
        if (way_ == Way::staged && begun_) continue;
        way = way_;
      }
      if (way == Way::direct || way == Way::nowhere) break;
      if (session_.copies.take_room(packed.size(), session_.start.usage.most_queued(kMostEarlyBytes))) {
        lock.unlock();
        return receive_early(reader, piece, kept);
      }
      changed_.wait(lock, [this] { return begun_; });
    }
  }
  if (way == Way::direct && rows.rows == 1) {
    return reader.read({reinterpret_cast<std::byte*>(rows.address + piece * rows.piece_bytes()), packed.size()});
  }
  const auto received = reader.read(packed);
  if (received && way == Way::direct) scatter(rows, piece * rows.piece_bytes(), packed);
  return received;
}

Result<void> IncomingCopy::receive_early(compression::PieceReader& reader, uint64_t piece, bool* kept) {
  std::vector<std::byte> data(rows.size_of(piece));
  if (const auto received = reader.read(data); !received) {
    session_.copies.give_room(data.size());
    return received;
  }
  {
    const std::lock_guard lock(mutex_);
    *kept = !begun_;
    if (*kept) {
      early_.emplace(piece, std::move(data));
      return {};
    }
  }
  make_current(session_.api, context);
  pass_on(piece, data);
  make_current(session_.api, nullptr);
  return {};
}

void IncomingCopy::pass_on(uint64_t piece, std::span<const std::byte> data) {
  Way way;
  {
    const std::lock_guard lock(mutex_);
    way = way_;
  }
  if (way == Way::direct) scatter(rows, piece * rows.piece_bytes(), data);
  if (StagingChunk* const chunk = way == Way::staged ? staged_->acquire() : nullptr) {
    std::memcpy(chunk->data, data.data(), data.size());
    staged_->filled(chunk, piece);
  }
  session_.copies.give_room(data.size());
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
