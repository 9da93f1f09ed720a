#include "server/worker/copies/incoming_copy.h"

#include <cstring>
#include <utility>

#include "server/worker/copies/copies.h"

namespace gpupool::worker {
namespace {

// Limits of early data in ordinary memory, per session: normally, and after a connection has waited for
// kWaitForBytes.
constexpr uint64_t kMostEarlyBytes = 256u << 20;
constexpr uint64_t kMostEarlyAtAll = uint64_t{1} << 30;
constexpr std::chrono::milliseconds kWaitForBytes{100};
// How long a connection waits for staging memory before it falls back to ordinary memory.
constexpr std::chrono::milliseconds kChunkTime{20};

}  // namespace

IncomingCopy::IncomingCopy(Copies& copies, uint64_t sequence, ContextState* context, const DeviceRows& rows)
    : BulkCopy(context, rows, true),
      copies_(copies),
      sequence_(sequence),
      seen_(rows.pieces()),
      missing_(rows.pieces()) {}

void IncomingCopy::prepare(ContextState& context) {
  staged_.emplace(copies_.api, context, rows);
  if (!staged_->take(copies_.staging, context, false, false)) return staged_.reset();
  const std::lock_guard lock(mutex_);
  way_ = Way::staged;
}

// Sets the way when the stream has reached the copy, or never will.
void IncomingCopy::decide(Way way) {
  {
    const std::lock_guard lock(mutex_);
    if (way_ != Way::discard) way_ = way;
    begun_ = true;
  }
  changed_.notify_all();
  start_placing_early_pieces();
}

// After begin(), lets a wait thread move the pieces in ordinary memory to their rows. The caller does it if
// no thread is available.
void IncomingCopy::start_placing_early_pieces() {
  {
    const std::lock_guard lock(mutex_);
    if (!begun_ || early_.empty() || placing_early_) return;
    placing_early_ = true;
    ++active_;
  }
  const bool taken = context && copies_.waits.submit(context, "staging memory for a copy to the device",
                                                     [self = shared_from_this()] {
                                                       make_current(self->copies_.api, self->context);
                                                       self->place_early_pieces();
                                                       make_current(self->copies_.api, nullptr);
                                                     });
  if (!taken) place_early_pieces();
}

void IncomingCopy::place_early_pieces() {
  uint64_t passed = 0;
  std::unique_lock lock(mutex_);
  for (; !early_.empty(); ++passed) {
    const auto node = early_.extract(early_.begin());
    lock.unlock();
    place(node.key(), node.mapped());
    copies_.bulk.give_room(node.mapped().size());
    lock.lock();
    changed_.notify_all();
  }
  placing_early_ = false;
  lock.unlock();
  count(passed);
}

void IncomingCopy::place(uint64_t piece, std::span<const std::byte> data) {
  StagingChunk* chunk = nullptr;
  while (way() == Way::staged && !chunk) chunk = staged_->acquire(kChunkTime);
  if (chunk) {
    std::memcpy(chunk->data, data.data(), data.size());
    staged_->filled(chunk, piece);
  } else if (way() == Way::direct) {
    scatter(rows, piece * rows.piece_bytes(), data);
  }
}

IncomingCopy::Way IncomingCopy::way() {
  const std::lock_guard lock(mutex_);
  return way_;
}

// The caller must have been counted in active_.
void IncomingCopy::count(uint64_t received) {
  bool last = false;
  count_done(received * rows.piece_bytes());
  {
    const std::lock_guard lock(mutex_);
    --active_;
    missing_ -= received;
    // Wait for the last thread to leave, because the context may be destroyed afterwards.
    last = !over_ && missing_ == 0 && active_ == 0;
    over_ |= last;
    if (last && span) span->finish();
    if (over_ && gate_) gate_->open();
  }
  changed_.notify_all();
  if (last) copies_.bulk.remove(sequence_);
}

IncomingCopy::Way IncomingCopy::choose_way(StreamState& stream) {
  if (staged_) return Way::staged;
  const bool reachable =
      copies_.memory.is_cpu_accessible(rows.address, (rows.rows - 1) * rows.pitch + rows.width);
  if (reachable && copies_.stream_work.is_idle(stream)) return Way::direct;
  staged_.emplace(copies_.api, *stream.context, rows);
  return staged_->take(copies_.staging, *stream.context, false, true) ? Way::staged : Way::discard;
}

CUresult IncomingCopy::begin(StreamState& stream, bool orders_streams) {
  const Way way = choose_way(stream);
  if (way == Way::staged) staged_->begin(stream.stream);
  decide(way);
  if (way == Way::discard) return CUDA_ERROR_OUT_OF_MEMORY;
  {
    const std::lock_guard lock(mutex_);
    span = copies_.begin_span(stream, true, rows.total());
    if (span && over_) span->finish();
    if (!over_) {
      const auto opened = [self = shared_from_this(), orders_streams](StreamState& stream) {
        self->finish(stream, orders_streams);
      };
      gate_ = copies_.gates.close(stream, sequence_, "a copy to the device", opened, orders_streams,
                                  rows.range());
      return CUDA_SUCCESS;
    }
  }
  finish(stream, orders_streams);  // all data had arrived before
  return CUDA_SUCCESS;
}

void IncomingCopy::discard_data() {
  if (staged_) staged_->close();
  decide(Way::discard);
}

// Completes the copy when its data is there or will not come. The stream's context must be current.
void IncomingCopy::finish(StreamState& stream, bool orders_streams) {
  if (staged_) {
    copies_.replies.defer(staged_->result());
    staged_->give_back(copies_.staging);
  }
  if (orders_streams) copies_.contexts.order_all_after(stream);
}

Result<void> IncomingCopy::receive(compression::PieceReader& reader, uint64_t offset,
                                   std::span<std::byte> scratch) {
  const uint64_t piece = offset / rows.piece_bytes();
  if (offset % rows.piece_bytes() != 0 || piece >= rows.pieces() || !reader.fits(rows.size_of(piece))) {
    return Error{ErrorCode::malformed, "a piece with an invalid offset or length"};
  }
  {
    const std::lock_guard lock(mutex_);
    if (seen_[piece]) return Error{ErrorCode::malformed, "a piece was sent twice"};
    seen_[piece] = true;
    ++active_;
  }
  bool kept = false;
  auto received = receive_piece(reader, piece, scratch, &kept);
  count(received.ok() && !kept ? 1 : 0);
  return received;
}

Result<void> IncomingCopy::receive_piece(compression::PieceReader& reader, uint64_t piece,
                                         std::span<std::byte> scratch, bool* kept) {
  const std::span<std::byte> packed = scratch.first(rows.size_of(piece));
  const auto impatient = std::chrono::steady_clock::now() + kWaitForBytes;
  std::unique_lock lock(mutex_);
  while (way_ != Way::direct && way_ != Way::discard) {
    // Pieces in ordinary memory indicate a stalled stream.
    if (way_ == Way::staged && early_.empty()) {
      lock.unlock();
      if (const auto received = receive_staged(reader, piece, packed)) return *received;
      lock.lock();
      if (way_ != Way::staged) continue;
    }
    const uint64_t most = std::chrono::steady_clock::now() < impatient ? kMostEarlyBytes : kMostEarlyAtAll;
    if (copies_.bulk.take_room(packed.size(), copies_.usage.most_queued(most))) {
      lock.unlock();
      return receive_early(reader, piece, kept);
    }
    const Waiting waiting("memory for data of copies in stalled streams");
    changed_.wait_for(lock, kChunkTime);  // other copies may release room without a notification
  }
  const Way way = way_;
  lock.unlock();
  if (way == Way::direct && rows.rows == 1) {
    return reader.read(
        {reinterpret_cast<std::byte*>(rows.address + piece * rows.piece_bytes()), packed.size()});
  }
  const auto received = reader.read(packed);
  if (received && way == Way::direct) scatter(rows, piece * rows.piece_bytes(), packed);
  return received;
}

// Returns nullopt if no chunk became free in time.
std::optional<Result<void>> IncomingCopy::receive_staged(compression::PieceReader& reader, uint64_t piece,
                                                         std::span<std::byte> packed) {
  make_current(copies_.api, context);
  std::optional<Result<void>> received;
  if (StagingChunk* const chunk = staged_->acquire(kChunkTime)) {
    received = reader.read({chunk->data, packed.size()});
    if (*received)
      staged_->filled(chunk, piece);
    else
      staged_->put_back(chunk);
  }
  make_current(copies_.api, nullptr);
  return received;
}

Result<void> IncomingCopy::receive_early(compression::PieceReader& reader, uint64_t piece, bool* kept) {
  std::vector<std::byte> data(rows.size_of(piece));
  if (const auto received = reader.read(data); !received) {
    copies_.bulk.give_room(data.size());
    return received;
  }
  {
    const std::lock_guard lock(mutex_);
    early_.emplace(piece, std::move(data));
  }
  *kept = true;
  make_current(copies_.api, context);
  start_placing_early_pieces();
  make_current(copies_.api, nullptr);
  return {};
}

void IncomingCopy::cancel() {
  discard_data();
  std::unique_lock lock(mutex_);
  way_ = Way::discard;
  changed_.wait(lock, [this] { return active_ == 0; });
  over_ = true;
  if (gate_)
    gate_->open();
  else if (staged_)
    staged_->give_back(copies_.staging);
}

}  // namespace gpupool::worker
