#include "server/worker/copies/remote_copy.h"

#include <algorithm>
#include <utility>

#include "server/worker/copies/copies.h"

namespace gpupool::worker {

using Move = RemoteMemory::Move;

RemoteCopy::RemoteCopy(Copies& copies, ContextState& context, const DeviceRows& rows, const Client& client,
                       uint64_t sequence, CUresult reply)
    : BulkCopy(&context, rows, client.to_device),
      copies_(copies),
      client_(client),
      sequence_(sequence),
      reply_(reply) {}

RemoteCopy::~RemoteCopy() {
  if (reached_) events_->give(reached_);
}

CUresult RemoteCopy::start(Copies& copies, StreamState& stream, const DeviceRows& rows, const Client& client,
                           uint64_t sequence, CUresult reply) {
  auto copy = std::make_shared<RemoteCopy>(copies, *stream.context, rows, client, sequence, reply);
  const bool direct =
      rows.rows == 1 && copies.memory.register_for_rdma(rows.address, rows.width, &copy->spans_);
  copy->span = copies.begin_span(stream, client.to_device, rows.total());
  copies.bulk.add(sequence, copy);
  const CUresult result = direct ? copy->begin_direct(stream) : copy->begin_staged(stream);
  if (result != CUDA_SUCCESS) copies.bulk.remove(sequence);
  return result;
}

void RemoteCopy::close_gate(StreamState& stream) {
  unmoved_ = pieces_ + (client_.to_device ? 0 : 1);
  const auto opened = [self = shared_from_this()](StreamState& stream) {
    self->give_back(stream);
    if (self->client_.orders_streams) self->copies_.contexts.order_all_after(stream);
  };
  const char* const reason =
      client_.to_device ? "a direct copy to the device" : "a direct copy from the device";
  gate_ = copies_.gates.close(stream, sequence_, reason, opened, client_.orders_streams, rows.range());
}

void RemoteCopy::give_back(StreamState& stream) {
  if (in_) in_->give_back(copies_.staging);
  if (out_) out_->give_back(copies_.staging, stream);
}

CUresult RemoteCopy::begin_direct(StreamState& stream) {
  reached_ = events_->take();
  const CUresult result =
      reached_ ? copies_.api.cuEventRecord(reached_, stream.stream) : events_->take_error();
  if (result != CUDA_SUCCESS) return result;
  uint64_t at = rows.address;
  for (const DeviceSpan& span : spans_) {
    pieces_ += (span.end - at + kLargePiece - 1) / kLargePiece;
    at = span.end;
  }
  written_past_cpu_ =
      client_.to_device && !copies_.memory.cpu_can_access() && copies_.api.cuFlushGPUDirectRDMAWrites;
  close_gate(stream);
  submit_when_ready();
  return CUDA_SUCCESS;
}

CUresult RemoteCopy::begin_staged(StreamState& stream) {
  pieces_ = rows.pieces();
  spans_.clear();
  CUresult result = CUDA_SUCCESS;
  if (client_.to_device) {
    in_.emplace(copies_.api, *stream.context, rows);
    if (!in_->take(copies_.staging, *stream.context, true, true)) return copies_.staging.refusal();
    in_->begin(stream.stream);
  } else {
    out_.emplace(copies_.api, *stream.context, rows);
    if (!out_->take(copies_.staging, *stream.context, true)) return CUDA_ERROR_OUT_OF_MEMORY;
    result = out_->begin(stream.stream);
  }
  if (result != CUDA_SUCCESS) {
    give_back(stream);
    return result;
  }
  close_gate(stream);
  submit_when_ready();
  return CUDA_SUCCESS;
}

void RemoteCopy::submit_when_ready() {
  const bool at_once =
      in_ ? in_->holds_all() : reached_ && copies_.api.cuEventQuery(reached_) == CUDA_SUCCESS;
  if (at_once) return submit_ready();
  const bool taken = copies_.waits.submit(context, "pieces of a direct copy", [self = shared_from_this()] {
    make_current(self->copies_.api, self->context);
    self->submit_ready();
    make_current(self->copies_.api, nullptr);
  });
  if (!taken) submit_ready();  // no thread available: the executor waits itself
}

void RemoteCopy::submit_ready() {
  if (out_) {
    while (const auto piece = out_->next()) submit(*piece, *piece + 1);
    if (const CUresult result = out_->result(); result != CUDA_SUCCESS) finish(result);
    return;
  }
  if (in_) {
    for (uint64_t piece = 0; piece < pieces_; ++piece) {
      StagingChunk* const chunk = in_->acquire();
      if (!chunk) return;
      {
        const std::lock_guard lock(mutex_);
        chunks_[piece] = chunk;
      }
      submit(piece, piece + 1);
    }
    return;
  }
  const CUresult result = copies_.api.cuEventSynchronize(reached_);
  events_->give(std::exchange(reached_, nullptr));  // must precede the destruction of the context
  if (result == CUDA_SUCCESS)
    submit(0, pieces_);
  else
    finish(result);
}

StagingChunk* RemoteCopy::chunk_of(uint64_t piece) {
  if (out_) return out_->chunk_of(piece);
  const std::lock_guard lock(mutex_);
  return chunks_.at(piece);
}

// Submits pieces, and the flush after the last piece.
void RemoteCopy::submit(uint64_t first, uint64_t last) {
  if (last == pieces_ && !client_.to_device) ++last;
  copies_.remote.submit(shared_from_this(), first, last);
}

std::optional<Move> RemoteCopy::begin(uint64_t piece) {
  {
    const std::lock_guard lock(mutex_);
    if (finished_) return std::nullopt;
    ++active_;
  }
  if (piece == pieces_) {
    return Move{.what = Move::flush,
                .remote_key = client_.key,
                .remote = client_.memory + rows.total() - 1,
                .bytes = 1};
  }
  Move move{.what = client_.to_device ? Move::read : Move::write, .remote_key = client_.key};
  if (spans_.empty()) {
    const StagingChunk& chunk = *chunk_of(piece);
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
  if (piece < pieces_ && count_done(spans_.empty() ? rows.size_of(piece) : kLargePiece) && span)
    span->finish();
  {
    const std::lock_guard lock(mutex_);
    over = --unmoved_ == 0 || finished_;
  }
  if ((in_ || out_) && piece < pieces_) {
    const CUcontext before = current_context();
    make_current(copies_.api, context);
    if (in_)
      in_->filled(chunk_of(piece), piece);
    else
      out_->done(piece);
    make_current(copies_.api, before);
  }
  {
    const std::lock_guard lock(mutex_);
    --active_;
    if (over) finished_ = true;
  }
  release();
}

void RemoteCopy::finish(CUresult result) {
  {
    const std::lock_guard lock(mutex_);
    if (!finished_) {
      finished_ = true;
      result_ = result;
    }
  }
  // Wake a thread that waits for a piece that will not come.
  if (in_) in_->close();
  if (out_) out_->close();
  release();
}

// Ends the copy if it is finished and none of its pieces is in progress.
void RemoteCopy::release() {
  {
    const std::lock_guard lock(mutex_);
    if (!finished_ || active_ != 0 || releasing_) return;
    releasing_ = true;
  }
  const DeviceApi& api = copies_.api;
  const CUcontext before = current_context();
  make_current(api, context);
  if (written_past_cpu_) {
    api.cuFlushGPUDirectRDMAWrites(CU_FLUSH_GPU_DIRECT_RDMA_WRITES_TARGET_CURRENT_CTX,
                                   CU_FLUSH_GPU_DIRECT_RDMA_WRITES_TO_OWNER);
  }
  if (in_ && result_ == CUDA_SUCCESS) result_ = in_->result();
  copies_.replies.answer(sequence_, result_ == CUDA_SUCCESS ? reply_ : result_);
  make_current(api, before);
  gate_->open();
  {
    const std::lock_guard lock(mutex_);
    released_ = true;
  }
  idle_.notify_all();
  copies_.bulk.remove(sequence_);
}

void RemoteCopy::cancel() {
  finish(CUDA_ERROR_CONTEXT_IS_DESTROYED);
  std::unique_lock lock(mutex_);
  idle_.wait(lock, [this] { return released_; });
}

}  // namespace gpupool::worker
