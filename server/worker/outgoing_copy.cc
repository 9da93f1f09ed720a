#include "server/worker/outgoing_copy.h"

#include "protocol/wire/copies.h"
#include "server/worker/bulk_links.h"
#include "server/worker/executor.h"
#include "server/worker/peer.h"

namespace gpupool::worker {

OutgoingCopy::OutgoingCopy(Executor& session, Way way, ContextState& context, const DeviceRows& rows, uint64_t sequence,
                           CUresult reply)
    : BulkCopy(&context, rows), session_(session), way_(way), sequence_(sequence), reply_(reply), unsent_(rows.pieces()) {}

CUresult OutgoingCopy::start(Executor& session, Way way, StreamState& stream, const DeviceRows& rows, uint64_t sequence,
                             CUresult reply) {
  auto copy = std::make_shared<OutgoingCopy>(session, way, *stream.context, rows, sequence, reply);
  copy->done_ = copy->signals_->take();
  if (!copy->done_) return CUDA_ERROR_OUT_OF_MEMORY;
  ++copy->done_->value;
  const bool direct = session.memory.reachable(rows.address, (rows.rows - 1) * rows.pitch + rows.width);
  session.copies.add(sequence, copy);
  const CUresult result = direct ? copy->enqueue_direct(stream) : copy->enqueue_staged(stream);
  if (result != CUDA_SUCCESS) session.copies.remove(sequence);
  return result;
}

// `ready_` has one event: everything before the copy is done.
CUresult OutgoingCopy::enqueue_direct(StreamState& stream) {
  CUevent event = nullptr;
  if (const CUresult result = hold(session_.api, stream.stream, &event); result != CUDA_SUCCESS) return result;
  ready_.push_back(event);
  hand_over();
  return CUDA_SUCCESS;
}

// `ready_` has an event per piece: it lies in the ring.
CUresult OutgoingCopy::enqueue_staged(StreamState& stream) {
  if (!ring_.take(session_.staging, *stream.context, rows.pieces(), false)) {
    signals_->give(done_);
    return CUDA_ERROR_OUT_OF_MEMORY;
  }
  CUresult result = ring_.enqueue_out(session_.api, *signals_, *events_, rows, stream.stream, &ready_);
  if (result == CUDA_SUCCESS) result = signals_->wait(*done_, done_->value, stream.stream);
  ring_.release_after(session_.staging, stream);
  if (result == CUDA_SUCCESS) {
    hand_over();
    return CUDA_SUCCESS;
  }
  // What is enqueued already must not wait for pieces that nobody will send.
  for (Signal* const signal : ring_.signals) signals_->raise(*signal, signal->value);
  signals_->raise(*done_, done_->value);
  for (const CUevent event : ready_) events_->give(event);
  ring_.give_back(*events_, *signals_);
  signals_->give(done_);
  return result;
}

// The pieces are queued when they are ready: at once, or by a wait thread.
void OutgoingCopy::hand_over() {
  const bool may_block = way_.by == Way::peer && !way_.server->is_open();
  if (!may_block && ready_.size() == 1 && session_.api.cuEventQuery(ready_.front()) == CUDA_SUCCESS) return queue_ready();
  const auto self = shared_from_this();
  const bool taken = session_.waits.submit(context, [self] {
    make_current(self->session_.api, self->context);
    self->queue_ready();
    make_current(self->session_.api, nullptr);
  });
  if (!taken) queue_ready();  // no thread to be had: the executor waits itself
}

void OutgoingCopy::queue_ready() {
  CUresult result = CUDA_SUCCESS;
  const bool staged = !ring_.chunks.empty();
  if (way_.by == Way::peer && !way_.server->open()) finish(result = CUDA_ERROR_NOT_SUPPORTED);
  for (uint64_t at = 0; at < ready_.size(); ++at) {
    if (result == CUDA_SUCCESS) {
      result = session_.api.cuEventSynchronize(ready_[at]);
      if (result != CUDA_SUCCESS) finish(result);
      else if (staged) queue(at);
    }
    events_->give(ready_[at]);
  }
  ready_.clear();
  if (staged || result != CUDA_SUCCESS) return;
  for (uint64_t piece = 0; piece < rows.pieces(); ++piece) queue(piece);
}

void OutgoingCopy::queue(uint64_t piece) {
  if (way_.by == Way::peer) way_.server->send(shared_from_this(), piece);
  else if (way_.by == Way::links) session_.links.send(shared_from_this(), piece);
  else session_.links.send_among_messages(shared_from_this(), piece);
}

std::optional<std::span<std::byte>> OutgoingCopy::begin(uint64_t piece, std::span<std::byte> scratch) {
  {
    const std::lock_guard lock(mutex_);
    if (finished_) return std::nullopt;
    ++active_;
  }
  const uint64_t size = rows.size_of(piece), offset = piece * rows.piece_bytes();
  if (!ring_.chunks.empty()) return std::span(ring_.chunks[ring_.slot(piece)]->data, size);
  if (rows.rows == 1) return std::span(reinterpret_cast<std::byte*>(rows.address + offset), size);
  gather(rows, offset, scratch.first(size));
  return scratch.first(size);
}

void OutgoingCopy::end(uint64_t piece, bool sent) {
  make_current(session_.api, context);
  if (!ring_.chunks.empty()) signals_->raise(*ring_.signals[ring_.slot(piece)], ring_.round(piece));
  {
    const std::lock_guard lock(mutex_);
    --active_;
  }
  idle_.notify_all();
  if (sent && unsent_.fetch_sub(1) == 1) finish(CUDA_SUCCESS);
  make_current(session_.api, nullptr);
}

Result<void> OutgoingCopy::send(transport::Connection& connection, compression::PieceSender& sender, uint64_t piece,
                                std::span<std::byte> scratch) {
  const auto data = begin(piece, scratch);
  if (!data) return {};
  wire::BulkHeader header;
  header.length = static_cast<uint32_t>(data->size());
  header.copy = way_.by == Way::peer ? way_.copy : sequence_;
  header.offset = piece * rows.piece_bytes();
  const iovec part{data->data(), data->size()};
  const auto sent = sender.send(connection, header, {&part, 1});
  end(piece, sent.ok());
  return sent;
}

void OutgoingCopy::send(Outbox& outbox, uint64_t piece, std::span<std::byte> scratch) {
  const auto data = begin(piece, scratch);
  if (!data) return;
  const wire::DeviceData where{piece * rows.piece_bytes()};
  end(piece, outbox.send(wire::MessageKind::device_data, 0, sequence_, std::as_bytes(std::span(&where, 1)), *data));
}

void OutgoingCopy::finish(CUresult result) {
  {
    const std::lock_guard lock(mutex_);
    if (finished_) return;
    finished_ = true;
  }
  make_current(session_.api, context);
  session_.answer(sequence_, result == CUDA_SUCCESS ? reply_ : result);
  for (Signal* const signal : ring_.signals) signals_->raise(*signal, signal->value);
  signals_->raise(*done_, done_->value);
  ring_.give_back(*events_, *signals_);
  signals_->give(done_);
  session_.copies.remove(sequence_);
}

void OutgoingCopy::cancel() {
  finish(CUDA_ERROR_CONTEXT_IS_DESTROYED);
  std::unique_lock lock(mutex_);
  idle_.wait(lock, [this] { return active_ == 0; });
}

}  // namespace gpupool::worker
