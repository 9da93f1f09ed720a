#include "server/worker/session/contexts.h"

#include <algorithm>
#include <atomic>

namespace gpupool::worker {
namespace {

thread_local CUcontext t_current = nullptr;
thread_local bool t_known = false;
thread_local bool t_keeps_green = false;

std::mutex g_green_mutex;
std::unordered_map<CUcontext, CUcontext> g_primary_of;
std::atomic<bool> g_any_green{false};

CUcontext for_this_thread(CUcontext context) {
  if (t_keeps_green || !g_any_green.load(std::memory_order_acquire)) return context;
  const std::lock_guard lock(g_green_mutex);
  const auto found = g_primary_of.find(context);
  return found == g_primary_of.end() ? context : found->second;
}

}  // namespace

void allow_green_contexts_in_this_thread() {
  t_keeps_green = true;
}

void set_primary_of(CUcontext green, CUcontext primary) {
  const std::lock_guard lock(g_green_mutex);
  if (primary)
    g_primary_of[green] = primary;
  else
    g_primary_of.erase(green);
  g_any_green.store(!g_primary_of.empty(), std::memory_order_release);
}

CUresult make_current(const DeviceApi& api, CUcontext context) {
  context = for_this_thread(context);
  if (t_known && t_current == context) return CUDA_SUCCESS;
  const CUresult result = api.cuCtxSetCurrent(context);
  t_known = result == CUDA_SUCCESS;
  t_current = context;
  return result;
}

CUcontext current_context() {
  return t_known ? t_current : nullptr;
}

void invalidate_current_context() {
  t_known = false;
}

CUresult EventPool::take_error() const {
  const CUresult state = api_.cuStreamQuery(nullptr);
  return state == CUDA_SUCCESS || state == CUDA_ERROR_NOT_READY ? CUDA_ERROR_OUT_OF_MEMORY : state;
}

CUevent EventPool::take() {
  {
    const std::lock_guard lock(mutex_);
    if (!idle_.empty()) {
      const CUevent event = idle_.back();
      idle_.pop_back();
      return event;
    }
  }
  CUevent event = nullptr;
  if (api_.cuEventCreate(&event, flags_) != CUDA_SUCCESS) return nullptr;
  return event;
}

void EventPool::give(CUevent event) {
  {
    const std::lock_guard lock(mutex_);
    if (idle_.size() < kMaxPooledEvents) {
      idle_.push_back(event);
      return;
    }
  }
  api_.cuEventDestroy_v2(event);
}

void EventPool::clear() {
  const std::lock_guard lock(mutex_);
  for (const CUevent event : idle_) api_.cuEventDestroy_v2(event);
  idle_.clear();
}

void EventPool::abandon() {
  const std::lock_guard lock(mutex_);
  idle_.clear();
}

ContextState::ContextState(const DeviceApi& api, uint64_t handle, CUcontext object, int device, bool primary)
    : handle(handle),
      object(object),
      device(device),
      primary(primary),
      events(std::make_shared<EventPool>(api)),
      timed_events(std::make_shared<EventPool>(api, CU_EVENT_BLOCKING_SYNC)) {
  legacy.context = this;
}

ContextState* Contexts::find(uint64_t handle) {
  if (current_ && current_->handle == handle) return current_;
  const auto found = contexts_.find(handle);
  return found == contexts_.end() ? nullptr : found->second.get();
}

ContextState* Contexts::find_primary(int device) {
  for (auto& [handle, context] : contexts_) {
    if (context->primary && context->device == device) return context.get();
  }
  return nullptr;
}

StreamState* Contexts::find_stream(CUstream stream) {
  if (!stream) return current_ ? &current_->legacy : nullptr;
  const auto in = [stream](ContextState& context) {
    const auto found = context.streams.find(stream);
    return found == context.streams.end() ? nullptr : found->second.get();
  };
  StreamState* state = current_ ? in(*current_) : nullptr;
  for (auto at = contexts_.begin(); !state && at != contexts_.end(); ++at) state = in(*at->second);
  return state;
}

ContextState* Contexts::find_on(int device) {
  if (current_ && current_->device == device) return current_;
  for (auto& [handle, context] : contexts_) {
    if (context->device == device) return context.get();
  }
  return nullptr;
}

ContextState* Contexts::add(uint64_t handle, CUcontext object, int device, bool primary) {
  auto& place = contexts_[handle];
  place = std::make_unique<ContextState>(api_, handle, object, device, primary);
  return place.get();
}

void Contexts::remove(uint64_t handle) {
  const auto found = contexts_.find(handle);
  if (found == contexts_.end()) return;
  if (current_ == found->second.get()) current_ = nullptr;
  contexts_.erase(found);
  invalidate_current_context();
}

void Contexts::order_after(StreamState& stream, StreamState& earlier) {
  enter(earlier.context);
  EventPool& events = *earlier.context->events;
  const CUevent event = events.take();
  const bool recorded = event && api_.cuEventRecord(event, earlier.stream) == CUDA_SUCCESS;
  if (!recorded) api_.cuStreamSynchronize(earlier.stream);
  enter(stream.context);
  if (recorded &&
      (!api_.cuStreamWaitEvent || api_.cuStreamWaitEvent(stream.stream, event, 0) != CUDA_SUCCESS))
    api_.cuEventSynchronize(event);
  if (event) events.give(event);
}

void Contexts::order_all_after(StreamState& stream) {
  ContextState& context = *stream.context;
  const CUevent event = context.events->take();
  if (!event || api_.cuEventRecord(event, stream.stream) != CUDA_SUCCESS) {
    if (event) context.events->give(event);
    // No event available, or the context is broken and nothing runs any more.
    api_.cuStreamSynchronize(stream.stream);
    return;
  }
  // Waits on the previous barrier refer to the work it was recorded behind, so its event can be reused.
  if (context.barrier) context.events->give(context.barrier);
  context.barrier = event;
  stream.ordered = context.barrier_number = ++barriers_;
}

void Contexts::wait_for_barriers(StreamState& stream) {
  for (const auto& [handle, context] : contexts_) {
    if (!context->barrier || context->barrier_number <= stream.ordered) continue;
    if (!api_.cuStreamWaitEvent ||
        api_.cuStreamWaitEvent(stream.stream, context->barrier, 0) != CUDA_SUCCESS) {
      api_.cuEventSynchronize(context->barrier);
    }
  }
  stream.ordered = barriers_;
}

CUresult Contexts::order_all_after_clear(CUstream stream) {
  if (!clear_event_) clear_event_ = current_->events->take();
  if (!clear_event_ || api_.cuEventRecord(clear_event_, stream) != CUDA_SUCCESS)
    return api_.cuStreamSynchronize(stream);
  clearing_ = current_;
  ++clears_;
  return CUDA_SUCCESS;
}

ContextState* Contexts::clearing() {
  if (clearing_ && api_.cuEventQuery(clear_event_) == CUDA_SUCCESS) forget_clears(*clearing_);
  return clearing_;
}

CUresult Contexts::await_clears() {
  if (!clearing()) return CUDA_SUCCESS;
  const CUcontext before = current_context();
  make_current(api_, clearing_->object);
  const Waiting waiting("new memory to be zeroed");
  const CUresult result = api_.cuEventSynchronize(clear_event_);
  make_current(api_, before);
  if (result == CUDA_SUCCESS) forget_clears(*clearing_);
  return result;
}

void Contexts::forget_clears(const ContextState& context) {
  if (clearing_ != &context) return;
  clearing_->events->give(std::exchange(clear_event_, nullptr));
  clearing_ = nullptr;
}

void Contexts::wait_for_clears(StreamState& stream) {
  stream.cleared = clears_;
  if (!clearing()) return;
  const CUcontext before = current_context();
  make_current(api_, clearing_->object);
  if (!api_.cuStreamWaitEvent || api_.cuStreamWaitEvent(stream.stream, clear_event_, 0) != CUDA_SUCCESS)
    api_.cuEventSynchronize(clear_event_);
  make_current(api_, before);
}

bool Contexts::is_blocking(StreamState& stream) const {
  unsigned flags = CU_STREAM_NON_BLOCKING;
  if (!stream.blocking && api_.cuStreamGetFlags &&
      api_.cuStreamGetFlags(stream.stream, &flags) != CUDA_SUCCESS)
    return false;
  if (!stream.blocking) stream.blocking = (flags & CU_STREAM_NON_BLOCKING) == 0;
  return *stream.blocking;
}

void Contexts::seen_idle(StreamState& stream) {
  stream.progress->raise(uses_);
  if (&stream != &stream.context->legacy) return;
  // The streams that the legacy stream waits for are done as well, unless the worker has enqueued work of its
  // own there.
  for (const auto& [object, other] : stream.context->streams) {
    if (other->last_use > other->progress->done() && api_.cuStreamQuery(object) == CUDA_SUCCESS)
      other->progress->raise(uses_);
  }
}

bool Contexts::is_done(StreamState& stream) const {
  ContextState& context = *stream.context;
  const uint64_t awaited = context.legacy.progress->awaited();
  const auto over = [&](StreamState& one) {
    return one.last_use <= one.progress->done() || (one.last_use <= awaited && is_blocking(one));
  };
  if (&stream != &context.legacy) return over(stream);
  if (stream.last_use > stream.progress->done()) return false;
  return std::all_of(context.streams.begin(), context.streams.end(),
                     [&](auto& other) { return over(*other.second) || !is_blocking(*other.second); });
}

void Contexts::track_event(CUevent event) {
  if (current_) current_->owner().recorded[event] = nullptr;
}

void Contexts::note_record(CUevent event, CUstream stream) {
  StreamState* const state = find_stream(stream);
  if (!state) return;
  auto& recorded = state->context->owner().recorded;
  if (const auto found = recorded.find(event); found != recorded.end()) {
    found->second = std::make_shared<const Recorded>(Recorded{state->progress, uses_});
  }
}

void Contexts::stop_tracking_event(CUevent event) {
  for (const auto& [handle, context] : contexts_) context->recorded.erase(event);
}

std::shared_ptr<const Recorded> Contexts::recorded(CUevent event) const {
  for (const auto& [handle, context] : contexts_) {
    if (const auto found = context->recorded.find(event); found != context->recorded.end())
      return found->second;
  }
  return nullptr;
}

CUresult Contexts::enter(ContextState* context) {
  current_ = context;
  return make_current(api_, context ? context->object : nullptr);
}

}  // namespace gpupool::worker
