// The order of the work of a context (context.h): behind which operations a new one is submitted.
#include "server/softgpu/runtime/context.h"
#include "server/softgpu/runtime/graph.h"
#include "server/softgpu/runtime/runtime.h"

namespace gpupool::softgpu {

HardwareQueue& Context::assign_queue() {
  return queues_[streams_made_.fetch_add(1, std::memory_order_relaxed) % queues_.size()];
}

// Blocks while the queue is full. Consecutive operations of one stream need no issue order, since each waits
// for the one before.
void Context::enter_queue(Stream& stream, Op& first, Op& last) {
  HardwareQueue& queue = stream.queue_;
  queue.add_operation(queue_limit_);
  last.set_queue(&queue);
  if (queue.last_stream.get() == &stream || !issues_in_order_) return;
  if (queue.last_stream && queue.last_stream->last_) first.follow_in_queue(*queue.last_stream->last_);
  queue.last_stream = Ref<Stream>::share(&stream);
}

CUresult Context::order(Stream& stream, Op& first, const Ref<Op>& last, uint64_t price) {
  std::lock_guard guard(context_mutex_);
  if (!active()) return CUDA_ERROR_CONTEXT_IS_DESTROYED;
  costs().occupy_for(price);
  enter_queue(stream, first, *last);
  const auto follow = [&](Stream& other) {
    if (!other.last_) return;
    if (other.last_->done()) {
      other.last_.reset();
    } else {
      first.after(*other.last_);
    }
  };
  follow(stream);
  if (stream.legacy()) {
    for (const Ref<Stream>& other : streams_) {
      if (other->blocking()) follow(*other);
    }
    for (const Orphan& orphan : orphans_) {
      if (orphan.blocking) first.after(*orphan.op);
    }
  } else if (stream.blocking()) {
    follow(*legacy_);
  }
  if (barrier_) {
    first.after(*barrier_);
    if (barrier_->done()) barrier_.reset();
  }
  stream.last_ = last;
  return CUDA_SUCCESS;
}

CUresult Context::enqueue(Stream& stream, const Ref<Op>& op, Op* also_after) {
  if (stream.capturing()) {
    std::lock_guard guard(graph_mutex());
    if (const Ref<Capture> capture = stream.capture()) return capture->add_op(stream, op);
  }
  // The legacy default stream would have to wait for work that is only captured.
  if (stream.legacy() && invalidate_captures(true)) return CUDA_ERROR_STREAM_CAPTURE_IMPLICIT;
  op->set_context(this);
  if (also_after != nullptr) op->after(*also_after);
  const CUresult result = order(stream, *op, op, costs().on() ? costs().price(op->cost()) : 0);
  if (result == CUDA_SUCCESS) op->submit();
  return result;
}

CUresult Context::enqueue_graph_launch(Stream& stream, const Ref<Op>& begin, const Ref<Op>& end,
                                       uint64_t price) {
  if (stream.legacy() && invalidate_captures(true)) return CUDA_ERROR_STREAM_CAPTURE_IMPLICIT;
  begin->set_context(this);
  return order(stream, *begin, end, price);
}

CUresult Context::enqueue_behind_all(const Ref<Op>& op, bool barrier) {
  op->set_context(this);
  {
    std::lock_guard guard(context_mutex_);
    if (!active()) return CUDA_ERROR_CONTEXT_IS_DESTROYED;
    costs().charge(op->cost());
    std::vector<Ref<Op>> ops;
    collect_all(ops);
    for (const Ref<Op>& other : ops) op->after(*other);
    orphans_.push_back({op, true});
    if (barrier) {
      barrier_ = op;
      for (const Ref<Context>& green : greens_) {
        std::lock_guard its(green->context_mutex_);
        green->barrier_ = op;
      }
    }
  }
  op->submit();
  return CUDA_SUCCESS;
}

void Context::run_when_done(const Ref<Op>& op) {
  {
    std::lock_guard guard(context_mutex_);
    std::vector<Ref<Op>> ops;
    collect_all(ops);
    for (const Ref<Op>& other : ops) op->after(*other);
    if (!ops.empty()) orphans_.push_back({op, false});
  }
  op->submit();
}

bool Context::invalidate_captures(bool blocking_only) {
  if (captures_in_progress.load(std::memory_order_relaxed) == 0) [[likely]]
    return false;
  std::vector<Ref<Stream>> capturing;
  {
    std::lock_guard guard(context_mutex_);
    for (const Ref<Stream>& stream : streams_) {
      if (stream->capturing() && (stream->blocking() || !blocking_only)) capturing.push_back(stream);
    }
  }
  if (capturing.empty()) return false;
  std::lock_guard guard(graph_mutex());
  for (const Ref<Stream>& stream : capturing) {
    if (const Ref<Capture> capture = stream->capture()) capture->invalid = true;
  }
  return true;
}

}  // namespace gpupool::softgpu
