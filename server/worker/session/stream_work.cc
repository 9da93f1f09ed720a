#include "server/worker/session/stream_work.h"

#include <memory>
#include <utility>

namespace gpupool::worker {

bool StreamWork::is_idle(StreamState& stream) {
  // Uses an event instead of a query, because a stream may also have to wait for others (as the legacy stream
  // does).
  EventPool& pool = *stream.context->events;
  const CUevent event = pool.take();
  if (!event) return false;
  const bool idle =
      api_.cuEventRecord(event, stream.stream) == CUDA_SUCCESS && api_.cuEventQuery(event) == CUDA_SUCCESS;
  pool.give(event);
  return idle;
}

void StreamWork::fetch_output(StreamState& stream) {
  // The stream is idle, so this returns at once; it makes the driver print the output of device code.
  if (capture_.expects_output()) api_.cuStreamSynchronize(stream.stream);
}

bool StreamWork::when_done(StreamState& stream, const char* purpose, std::function<void(CUresult)> then) {
  const auto pool = stream.context->events;
  const CUevent event = pool->take();
  // Returns the event to its pool even if the session ends before a thread waits for it.
  std::shared_ptr<void> lent(event, [pool](void* lent) {
    if (lent) pool->give(static_cast<CUevent>(lent));
  });
  if (!event || api_.cuEventRecord(event, stream.stream) != CUDA_SUCCESS) return false;
  return waits_.submit(stream.context->object, {purpose, stream.handle},
                       [this, lent, context = stream.context->object, then = std::move(then)]() mutable {
                         make_current(api_, context);
                         const CUresult result = api_.cuEventSynchronize(static_cast<CUevent>(lent.get()));
                         lent.reset();
                         then(result);
                         make_current(api_, nullptr);
                       });
}

}  // namespace gpupool::worker
