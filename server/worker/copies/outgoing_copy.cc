#include "server/worker/copies/outgoing_copy.h"

#include <utility>

#include "protocol/wire/copies.h"
#include "server/worker/copies/bulk_connections.h"
#include "server/worker/copies/copies.h"
#include "server/worker/sharing/peer.h"

namespace gpupool::worker {

OutgoingCopy::OutgoingCopy(Copies& copies, Way way, ContextState& context, const DeviceRows& rows,
                           uint64_t sequence, CUresult reply)
    : BulkCopy(&context, rows, false),
      copies_(copies),
      way_(way),
      sequence_(sequence),
      reply_(reply),
      unsent_(rows.pieces()) {}

OutgoingCopy::~OutgoingCopy() {
  if (reached_) events_->give(reached_);
}

CUresult OutgoingCopy::start(Copies& copies, Way way, StreamState& stream, const DeviceRows& rows,
                             uint64_t sequence, CUresult reply) {
  auto copy = std::make_shared<OutgoingCopy>(copies, way, *stream.context, rows, sequence, reply);
  const bool direct =
      copies.memory.is_cpu_accessible(rows.address, (rows.rows - 1) * rows.pitch + rows.width);
  copy->span = copies.begin_span(stream, false, rows.total());
  copies.bulk.add(sequence, copy);
  const CUresult result = direct ? copy->begin_direct(stream) : copy->begin_staged(stream);
  if (result != CUDA_SUCCESS) copies.bulk.remove(sequence);
  return result;
}

CUresult OutgoingCopy::begin_direct(StreamState& stream) {
  reached_ = events_->take();
  const CUresult result =
      reached_ ? copies_.api.cuEventRecord(reached_, stream.stream) : events_->take_error();
  if (result != CUDA_SUCCESS) return result;
  gate_ = copies_.gates.close(stream, sequence_, "a copy from the device", nullptr, false, rows.range());
  queue_when_ready();
  return CUDA_SUCCESS;
}

CUresult OutgoingCopy::begin_staged(StreamState& stream) {
  staged_.emplace(copies_.api, *stream.context, rows);
  if (!staged_->take(copies_.staging, *stream.context, false)) return copies_.staging.refusal();
  const CUresult result = staged_->begin(stream.stream);
  if (result != CUDA_SUCCESS) {
    staged_->give_back(copies_.staging, stream);
    return result;
  }
  gate_ = copies_.gates.close(stream, sequence_, "a copy from the device",
                              [self = shared_from_this()](StreamState& stream) {
                                self->staged_->give_back(self->copies_.staging, stream);
                              });
  queue_when_ready();
  return CUDA_SUCCESS;
}

// Queues the pieces at once if they are ready, else on a wait thread.
void OutgoingCopy::queue_when_ready() {
  const bool may_block = way_.by == Way::peer && !way_.server->is_open();
  if (!may_block && reached_ && copies_.api.cuEventQuery(reached_) == CUDA_SUCCESS) return queue_ready();
  const auto self = shared_from_this();
  const bool taken = copies_.waits.submit(context, "pieces of a copy from the device", [self] {
    make_current(self->copies_.api, self->context);
    self->queue_ready();
    make_current(self->copies_.api, nullptr);
  });
  if (!taken) queue_ready();  // no thread available: the executor waits itself
}

void OutgoingCopy::queue_ready() {
  if (way_.by == Way::peer && !way_.server->open(way_.there)) finish(CUDA_ERROR_NOT_SUPPORTED);
  if (staged_) {
    while (const auto piece = staged_->next()) queue(*piece);
    if (const CUresult result = staged_->result(); result != CUDA_SUCCESS) finish(result);
    return;
  }
  const CUresult result = copies_.api.cuEventSynchronize(reached_);
  events_->give(std::exchange(reached_, nullptr));  // must precede the destruction of the context
  if (result != CUDA_SUCCESS) return finish(result);
  for (uint64_t piece = 0; piece < rows.pieces(); ++piece) queue(piece);
}

void OutgoingCopy::queue(uint64_t piece) {
  if (way_.by == Way::peer)
    way_.server->send(shared_from_this(), piece);
  else if (way_.by == Way::links)
    copies_.connections.send(shared_from_this(), piece);
  else
    copies_.connections.send_among_messages(shared_from_this(), piece);
}

std::optional<std::span<std::byte>> OutgoingCopy::lend(uint64_t piece, std::span<std::byte> scratch) {
  {
    const std::lock_guard lock(mutex_);
    if (finished_) return std::nullopt;
    ++active_;
  }
  const uint64_t size = rows.size_of(piece), offset = piece * rows.piece_bytes();
  if (staged_) return std::span(staged_->chunk_of(piece)->data, size);
  if (rows.rows == 1) return std::span(reinterpret_cast<std::byte*>(rows.address + offset), size);
  gather(rows, offset, scratch.first(size));
  return scratch.first(size);
}

void OutgoingCopy::end(uint64_t piece, bool sent) {
  make_current(copies_.api, context);
  if (staged_) staged_->done(piece);
  {
    std::unique_lock lock(mutex_);
    if (finished_ && active_ == 1) {
      lock.unlock();
      take_back();
      lock.lock();
    }
    if (--active_ == 0 && finished_) gate_->open();
  }
  idle_.notify_all();
  if (sent && count_done(rows.size_of(piece)) && span) span->finish();
  if (sent && unsent_.fetch_sub(1) == 1) finish(CUDA_SUCCESS);
  make_current(copies_.api, nullptr);
}

// The device may change the memory once the copy is over.
void OutgoingCopy::take_back() {
  if (is_lent()) copies_.connections.take_back({reinterpret_cast<std::byte*>(rows.address), rows.width});
}

Result<void> OutgoingCopy::send(transport::Connection& connection, compression::PieceSender& sender,
                                uint64_t piece, std::span<std::byte> scratch) {
  const auto data = lend(piece, scratch);
  if (!data) return {};
  wire::BulkHeader header;
  header.length = static_cast<uint32_t>(data->size());
  header.copy = way_.by == Way::peer ? way_.there.copy : sequence_;
  header.offset = piece * rows.piece_bytes();
  const iovec part{data->data(), data->size()};
  const auto lent = is_lent() ? *data : std::span<std::byte>();
  const auto sent = sender.send(connection, header, {&part, 1}, lent);
  end(piece, sent.ok());
  return sent;
}

void OutgoingCopy::send(Outbox& outbox, uint64_t piece, std::span<std::byte> scratch) {
  const auto data = lend(piece, scratch);
  if (!data) return;
  const wire::DeviceData where{piece * rows.piece_bytes()};
  end(piece,
      outbox.send(wire::MessageKind::device_data, 0, sequence_, std::as_bytes(std::span(&where, 1)), *data));
}

void OutgoingCopy::finish(CUresult result) {
  {
    const std::lock_guard lock(mutex_);
    if (finished_) return;
    finished_ = true;
  }
  take_back();
  make_current(copies_.api, context);
  copies_.replies.answer(sequence_, result == CUDA_SUCCESS ? reply_ : result);
  if (staged_) staged_->close();
  {
    const std::lock_guard lock(mutex_);
    if (active_ == 0) gate_->open();  // otherwise end() of the last piece in transit opens it
  }
  copies_.bulk.remove(sequence_);
}

void OutgoingCopy::cancel() {
  finish(CUDA_ERROR_CONTEXT_IS_DESTROYED);
  std::unique_lock lock(mutex_);
  idle_.wait(lock, [this] { return active_ == 0; });
}

}  // namespace gpupool::worker
