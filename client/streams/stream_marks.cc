#include "client/streams/stream_marks.h"

#include <algorithm>
#include <mutex>
#include <optional>
#include <unordered_map>

namespace gpupool::client {
namespace {

struct Mark {
  CUevent event = nullptr;
  uint64_t context = 0;        // of the event
  StreamOrder::Points points;  // the frees that it is behind
};

struct Marks {
  std::mutex mutex;
  std::unordered_map<uint64_t, Mark> by_stream;  // except marks that a thread has taken
};
Marks& marks() {
  static Marks* const only = new Marks;
  return *only;
}

Context* context_by_handle(uint64_t handle) {
  return handles().find_as<Context>(Kind::context, handle);
}

bool stream_is_alive(uint64_t stream) {
  return handles().find(cuda::kind_of(stream), stream) != nullptr;
}

bool mark_covers(const Mark& mark, const FreePoint& wanted) {
  return std::any_of(mark.points.begin(), mark.points.end(), [&](const FreePoint& point) {
    return point.stream == wanted.stream && point.time >= wanted.time;
  });
}

void destroy_mark(const Mark& mark) {
  Context* const context = context_by_handle(mark.context);
  if (context && mark.event) (void)rows::cuEventDestroy_v2::at({context->session, context}, {mark.event});
}

// Records the mark's event behind the stream's present work.
bool record_mark(uint64_t stream, Mark& mark) {
  const bool null_stream = cuda::kind_of(stream) == Kind::context;
  const Object* const object = null_stream ? nullptr : handles().find(Kind::stream, stream);
  Context* const context = context_by_handle(null_stream ? stream : object ? object->context : 0);
  if (!context) return false;
  const CallTarget target{context->session, context};
  if (!mark.event && rows::cuEventCreate::at(target, {&mark.event, CU_EVENT_DISABLE_TIMING}) != CUDA_SUCCESS)
    return false;
  mark.context = context->owner().handle;
  mark.points = stream_order().reach(stream);
  return rows::cuEventRecord::at(target,
                                 {mark.event, cuda::handle_from_bits<CUstream>(null_stream ? 0 : stream)}) ==
         CUDA_SUCCESS;
}

// Takes the stream's mark, recorded behind the point; return it with release_mark(). nullopt: the stream was
// destroyed without a mark.
std::optional<Mark> acquire_mark(const FreePoint& point) {
  Mark mark;
  {
    const std::lock_guard lock(marks().mutex);
    if (auto known = marks().by_stream.extract(point.stream)) mark = std::move(known.mapped());
  }
  if (mark.event && mark_covers(mark, point)) return mark;
  if (record_mark(point.stream, mark)) return mark;
  destroy_mark(mark);
  return std::nullopt;
}

void release_mark(uint64_t stream, Mark mark) {
  {
    const std::lock_guard lock(marks().mutex);
    if (marks().by_stream.try_emplace(stream, mark).second) return;
  }
  destroy_mark(mark);  // another thread has stored one meanwhile
}

}  // namespace

const Context& stream_context(const Context& current, CUstream stream) {
  const Object* const object = stream ? handles().find(Kind::stream, cuda::handle_bits(stream)) : nullptr;
  const Context* const own = object ? context_by_handle(object->context) : nullptr;
  return own ? *own : current;
}

CUresult ask_passed(const FreePoint& point) {
  auto mark = acquire_mark(point);
  Context* const context = mark ? context_by_handle(mark->context) : nullptr;
  if (!context) return CUDA_SUCCESS;
  const CUresult state = rows::cuEventQuery::at({context->session, context}, {mark->event});
  if (state == CUDA_SUCCESS) stream_order().passed(mark->points);
  release_mark(point.stream, std::move(*mark));
  return state == CUDA_ERROR_NOT_READY ? CUDA_SUCCESS : state;
}

bool wait_for_point(Context& context, CUstream stream, const FreePoint& point) {
  auto mark = acquire_mark(point);
  if (!mark) return false;
  const CUresult result = rows::cuStreamWaitEvent::at({context.session, &context}, {stream, mark->event, 0});
  if (result == CUDA_SUCCESS) stream_order().waits(order_key(context, stream), mark->points);
  release_mark(point.stream, std::move(*mark));
  return result == CUDA_SUCCESS;
}

void prepare_stream_destruction(CUstream stream) {
  if (!stream_order().active()) return;
  const uint64_t key = cuda::handle_bits(stream);
  for (const FreePoint& point : stream_order().reach(key)) {
    if (point.stream != key) continue;
    if (auto mark = acquire_mark(point)) release_mark(key, std::move(*mark));
  }
  stream_order().stream_destroyed(key);
}

void forget_marks_of(uint64_t context) {
  const std::lock_guard lock(marks().mutex);
  std::erase_if(marks().by_stream, [context](const auto& mark) { return mark.second.context == context; });
}

void destroy_stale_marks() {
  std::vector<Mark> gone;
  {
    const std::lock_guard lock(marks().mutex);
    std::erase_if(marks().by_stream, [&](const auto& known) {
      const auto& [stream, mark] = known;
      const bool done = !stream_is_alive(stream) &&
                        std::all_of(mark.points.begin(), mark.points.end(),
                                    [](const FreePoint& point) { return stream_order().is_passed(point); });
      if (done) gone.push_back(mark);
      return done;
    });
  }
  for (const Mark& mark : gone) destroy_mark(mark);
}

}  // namespace gpupool::client
