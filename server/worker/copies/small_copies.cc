#include "server/worker/copies/small_copies.h"

#include <algorithm>

#include "protocol/wire/copies.h"

namespace gpupool::worker {

void SmallCopies::push(StreamState& stream, const CopyPiece& piece) {
  const std::lock_guard lock(items_mutex_);
  if (!stream.lane) stream.lane = std::make_shared<CopyLane>(*stream.context);
  if (stream.lane->pieces.empty()) lanes_.push_back(stream.lane);
  stream.lane->pieces.push_back(piece);
  pending_.fetch_add(1, std::memory_order_release);
}

void SmallCopies::serve(StreamState& stream) {
  std::shared_ptr<CopyLane> lane = stream.lane;
  {
    const std::lock_guard lock(items_mutex_);
    if (!lane || lane->pieces.empty() || lane->served) return;
    lane->served = true;
  }
  if (waits_.submit(lane->context, "small copies from the device", [this, lane] { wait_for(lane); })) return;
  // No thread is available: the executor waits itself.
  wait_for(lane);
}

void SmallCopies::wait_for(const std::shared_ptr<CopyLane>& lane) {
  const CUcontext before = current_context();
  make_current(api_, lane->context);
  while (true) {
    CUevent event = nullptr;
    {
      const std::lock_guard lock(items_mutex_);
      if (lane->pieces.empty() || outbox_.over()) {
        lane->served = false;
        break;
      }
      event = lane->watched = lane->pieces.front().event;
      lane->watched_released = false;
    }
    if (event) api_.cuEventSynchronize(event);
    {
      const std::lock_guard lock(items_mutex_);
      if (lane->watched_released) lane->events->give(event);
      lane->watched = nullptr;
    }
    flush();
  }
  make_current(api_, before);
}

// Sends pieces at the front of the lane that are ready. Appends replies at the front to `replies`, or stops
// at them if `replies` is null. Returns false if it found nothing to do.
bool SmallCopies::send_ready(CopyLane& lane, std::vector<CopyPiece>* replies) {
  bool any = false;
  while (true) {
    CopyPiece piece;
    CUresult failed = CUDA_SUCCESS;
    {
      const std::lock_guard lock(items_mutex_);
      if (lane.pieces.empty()) break;
      piece = lane.pieces.front();
      if (!piece.chunk) {
        if (!replies) break;
        if (piece.result == CUDA_SUCCESS) piece.result = lane.failed;
        lane.failed = CUDA_SUCCESS;
        replies->push_back(piece);
      } else {
        const CUresult state = piece.event ? api_.cuEventQuery(piece.event) : CUDA_SUCCESS;
        if (state == CUDA_ERROR_NOT_READY) break;
        if (state != CUDA_SUCCESS && lane.failed == CUDA_SUCCESS) lane.failed = state;
        failed = lane.failed;
        // The event is complete, so this returns at once; it makes the driver print the output of device
        // code.
        if (piece.event && capture_.expects_output()) api_.cuEventSynchronize(piece.event);
      }
      lane.pieces.pop_front();
      if (lane.pieces.empty()) {
        std::erase_if(lanes_, [&](const auto& other) { return other.get() == &lane; });
      }
      if (piece.event) {
        if (lane.watched == piece.event)
          lane.watched_released = true;
        else
          lane.events->give(piece.event);
      }
    }
    any = true;
    if (piece.chunk) {
      if (failed == CUDA_SUCCESS) {
        const wire::DeviceData where{piece.offset};
        outbox_.send(wire::MessageKind::device_data, 0, piece.sequence, std::as_bytes(std::span(&where, 1)),
                     {piece.chunk->data, piece.size});
      }
      staging_.give_back(piece.chunk);
    }
    pending_.fetch_sub(1, std::memory_order_release);
  }
  return any;
}

void SmallCopies::flush() {
  if (idle()) {
    // Another thread may still be sending the last piece.
    const std::lock_guard lock(send_mutex_);
    return;
  }
  const std::lock_guard lock(send_mutex_);
  std::vector<std::shared_ptr<CopyLane>> lanes;
  std::vector<CopyPiece> replies;
  const auto for_each_lane = [&](auto&& visit) {
    {
      const std::lock_guard items(items_mutex_);
      lanes = lanes_;
    }
    for (const auto& lane : lanes) visit(*lane);
  };
  while (true) {
    replies.clear();
    for_each_lane([&](CopyLane& lane) { send_ready(lane, &replies); });
    if (replies.empty()) return;
    // With the default stream, the end of this copy may imply that copies of other streams have ended since
    // their lanes were visited above.
    for_each_lane([&](CopyLane& lane) { send_ready(lane, nullptr); });
    if (capture_.expects_output()) capture_.flush();
    for (const CopyPiece& reply : replies) {
      outbox_.send(wire::MessageKind::reply, reply.result, reply.sequence);
    }
  }
}

void SmallCopies::drop_context(const ContextState& context) {
  flush();
  const std::lock_guard lock(send_mutex_);
  const std::lock_guard items(items_mutex_);
  for (const auto& lane : lanes_) {
    if (lane->context != context.object) continue;
    for (const CopyPiece& piece : lane->pieces) {
      if (piece.chunk)
        staging_.give_back(piece.chunk);
      else
        outbox_.send(wire::MessageKind::reply, CUDA_ERROR_CONTEXT_IS_DESTROYED, piece.sequence);
    }
    pending_.fetch_sub(lane->pieces.size(), std::memory_order_release);
    lane->pieces.clear();
  }
  std::erase_if(lanes_, [](const auto& lane) { return lane->pieces.empty(); });
}

}  // namespace gpupool::worker
