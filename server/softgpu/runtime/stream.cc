#include "server/softgpu/runtime/stream.h"

#include "protocol/driver/cuda_header.h"
#include "server/softgpu/runtime/context.h"
#include "server/softgpu/runtime/graph.h"
#include "server/softgpu/runtime/value_ops.h"

namespace gpupool::softgpu {

Stream::Stream(Ref<Context> context, HardwareQueue& queue, unsigned flags, int priority, bool legacy,
               uint64_t id)
    : context_(std::move(context)),
      flags_(flags),
      priority_(priority),
      legacy_(legacy),
      blocking_((flags & CU_STREAM_NON_BLOCKING) == 0),
      id_(id),
      queue_(queue) {}

Stream::~Stream() = default;

Ref<Capture> Stream::capture() const {
  return capture_;
}

void Stream::set_capture(Ref<Capture> capture) {
  capture_ = std::move(capture);
  capturing_.store(static_cast<bool>(capture_), std::memory_order_release);
}

void EventOp::start() {
  completed_at_.store(monotonic_nanoseconds(), std::memory_order_release);
  publish_completion();
  complete();
}

Event::Event(Ref<Context> context, unsigned flags, std::shared_ptr<SharedEvent> shared)
    : context_(std::move(context)), flags_(flags), shared_(std::move(shared)) {}

Event::~Event() = default;

bool Event::timed() const {
  return (flags_ & CU_EVENT_DISABLE_TIMING) == 0;
}

bool Event::blocking_sync() const {
  return (flags_ & CU_EVENT_BLOCKING_SYNC) != 0;
}

Ref<EventOp> Event::record() const {
  std::lock_guard guard(lock_);
  return record_;
}

uint64_t Event::latest_foreign_record() const {
  if (!shared_) return 0;
  const uint64_t latest = shared_->latest();
  const Ref<EventOp> own = record();
  return own && own->number() == latest ? 0 : latest;
}

Ref<Op> Event::wait_operation() const {
  if (const uint64_t number = latest_foreign_record()) {
    if (shared_->passed(number)) return nullptr;
    const Ref<SharedEventWaitOp> wait = make_ref<SharedEventWaitOp>(shared_, number);
    wait->set_context(context_.get());
    wait->submit();
    return wait;
  }
  const Ref<EventOp> own = record();
  return own && !own->done() ? Ref<Op>(own) : nullptr;
}

bool Event::pending() const {
  if (const uint64_t number = latest_foreign_record()) return !shared_->passed(number);
  const Ref<EventOp> own = record();
  return own && !own->done();
}

void Event::set_record(Ref<EventOp> record) {
  std::lock_guard guard(lock_);
  std::swap(record_, record);
}

Ref<Capture> Event::capture() const {
  return capture_;
}

void Event::set_capture(Ref<Capture> capture, std::vector<CapturedDependency> nodes) {
  capture_ = std::move(capture);
  captured_nodes_ = std::move(nodes);
  captured_.store(static_cast<bool>(capture_), std::memory_order_release);
}

}  // namespace gpupool::softgpu
