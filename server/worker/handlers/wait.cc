// Handlers for waits. A wait is answered at once if all its work is done, after short polling if it is nearly
// done, and otherwise by a wait thread. An event recorded when the command is executed fixes the work to wait
// for, so later commands of the client's other threads are not included.
#include <chrono>
#include <span>

#include "protocol/wire/commands.h"
#include "server/worker/handlers/commands.h"

namespace gpupool::worker::commands {
namespace {

struct Marks {  // events on the streams that a command waits for
  std::shared_ptr<EventPool> pool;
  uint64_t use = 0;  // Contexts::uses() before they were recorded
  std::vector<CUevent> events;
  std::vector<std::shared_ptr<StreamProgress>> streams;
  void done() const {
    for (const auto& stream : streams) stream->passed(use);
  }
};

// Returns true if the event has passed or its context has failed; keeps the first error.
bool passed(const DeviceApi& api, CUevent event, CUresult& result) {
  const CUresult state = api.cuEventQuery(event);
  if (state == CUDA_ERROR_NOT_READY) return false;
  if (state != CUDA_SUCCESS && result == CUDA_SUCCESS) result = state;
  return true;
}

// Polls until all marks have passed, and returns true then. Returns false at the end of the session's spin
// time or when another command has arrived. Gives passed marks back to the pool.
bool poll_marks(Session& session, Marks& marks, SpinTime::Clock::time_point begin, CUresult& result) {
  const auto stop = begin + session.spin_time.limit();
  while (!session.inbox.has_input()) {
    while (!marks.events.empty() && passed(session.api, marks.events.back(), result)) {
      marks.pool->give(marks.events.back());
      marks.events.pop_back();
    }
    if (marks.events.empty()) return session.spin_time.note_wait(SpinTime::Clock::now() - begin), true;
    if (SpinTime::Clock::now() >= stop) return false;
  }
  return false;
}

Outcome completed(Replies& replies, CUresult result) {
  replies.publish();
  return result;
}

// Waits for the present work of `streams`, which belong to `context` (which must be current) or to its green
// contexts.
Outcome wait_for(Session& session, Command& command, ContextState& context,
                 std::span<StreamState* const> streams) {
  Marks marks{context.events, session.contexts.uses(), {}, {}};
  CUresult result = CUDA_SUCCESS;
  for (StreamState* const stream : streams) {
    const CUresult state = session.api.cuStreamQuery(stream->stream);
    if (state == CUDA_SUCCESS) {
      session.contexts.seen_idle(*stream);
      stream->dirty = false;
      stream->slab_used = 0;  // its small copies are done
      session.stream_work.fetch_output(*stream);
      continue;
    }
    result = state;
    if (state == CUDA_ERROR_NOT_READY) {
      const CUevent event = marks.pool->take();
      result = event ? session.api.cuEventRecord(event, stream->stream) : marks.pool->take_error();
      if (event) marks.events.push_back(event);
      marks.streams.push_back(stream->progress);
    }
    if (result != CUDA_SUCCESS) break;
  }
  if (result != CUDA_SUCCESS) {
    for (const CUevent event : marks.events) marks.pool->give(event);
    return completed(session.replies, result);
  }
  if (marks.events.empty()) return completed(session.replies, CUDA_SUCCESS);
  const auto begin = SpinTime::Clock::now();
  if (poll_marks(session, marks, begin, result)) {
    if (result == CUDA_SUCCESS) {
      marks.done();
      for (StreamState* const stream : streams) {
        if (stream->dirty && session.api.cuStreamQuery(stream->stream) == CUDA_SUCCESS)
          session.stream_work.fetch_output(*stream);
      }
    }
    return completed(session.replies, result);
  }
  if (!command.wants_reply()) {
    for (const CUevent event : marks.events) marks.pool->give(event);
    return CUDA_SUCCESS;
  }
  const uint64_t sequence = command.header.sequence;
  const CUcontext object = context.object;
  const CUresult deferred = session.replies.take_deferred();
  const WaitPool::Purpose purpose("a synchronize call",
                                  streams.size() == 1 ? streams.front()->handle : CurrentCommand::kNoStream);
  const bool parked =
      session.waits.submit(object, purpose, [&session, marks, sequence, object, deferred, begin] {
        make_current(session.api, object);
        CUresult result = CUDA_SUCCESS;
        for (const CUevent event : marks.events) {
          const CUresult state = session.api.cuEventSynchronize(event);
          if (result == CUDA_SUCCESS) result = state;
          marks.pool->give(event);
        }
        session.spin_time.note_wait(SpinTime::Clock::now() - begin);
        if (result == CUDA_SUCCESS) marks.done();
        if (deferred != CUDA_SUCCESS) result = deferred;
        session.replies.answer(sequence, result);
        make_current(session.api, nullptr);
      });
  if (parked) return Outcome::parked();
  for (const CUevent event : marks.events) marks.pool->give(event);
  return deferred != CUDA_SUCCESS ? deferred : CUDA_ERROR_OUT_OF_MEMORY;
}

}  // namespace

Outcome synchronize_context(Session& session, Command& command) {
  if (!command.body.finished()) return bad_body();
  ContextState* const context = session.contexts.enter_named(command.header.context);
  if (!context) return CUDA_ERROR_INVALID_CONTEXT;
  std::vector<StreamState*> busy;
  for (const auto& [handle, other] : session.contexts.all()) {  // includes its green contexts
    if (other.get() != context && other->root != context) continue;
    other->for_each_stream([&](StreamState& stream) {
      if (stream.dirty) busy.push_back(&stream);
    });
  }
  // No work of this client is running, so this returns at once, with the context's error if there is one.
  if (busy.empty()) return completed(session.replies, session.api.cuCtxSynchronize());
  return wait_for(session, command, *context, busy);
}

Outcome synchronize_stream(Session& session, Command& command) {
  const auto body = read_exact_body<wire::SynchronizeStream>(command);
  if (!body) return bad_body();
  session.contexts.enter_named(command.header.context);
  StreamState* const stream = session.table.find_stream(body->stream);
  if (!stream) return session.contexts.current() ? CUDA_ERROR_INVALID_HANDLE : CUDA_ERROR_INVALID_CONTEXT;
  session.contexts.enter(stream->context);
  return wait_for(session, command, *stream->context, {&stream, 1});
}

// The backlog executes this command after earlier records of the event.
Outcome await_record(Session&, Command& command) {
  return read_exact_body<wire::AwaitRecord>(command) ? Outcome(CUDA_SUCCESS) : bad_body();
}

// The backlog executes this command after earlier barriers.
Outcome await_barriers(Session&, Command& command) {
  return command.body.finished() ? Outcome(CUDA_SUCCESS) : bad_body();
}

Outcome synchronize_event(Session& session, Command& command) {
  const auto body = read_exact_body<wire::SynchronizeEvent>(command);
  if (!body) return bad_body();
  ContextState* const context = session.contexts.enter_named(command.header.context);
  if (!context) return CUDA_ERROR_INVALID_CONTEXT;
  const auto object = session.table.resolve(cuda::Kind::event, body->event);
  if (!object) return CUDA_ERROR_INVALID_HANDLE;
  const auto event = static_cast<CUevent>(*object);
  const auto recorded = session.contexts.recorded(event);
  const auto begin = SpinTime::Clock::now();
  const auto stop = begin + session.spin_time.limit();
  CUresult result = CUDA_SUCCESS;
  bool done = passed(session.api, event, result);
  const bool at_once = done;
  while (!done && !session.inbox.has_input() && SpinTime::Clock::now() < stop)
    done = passed(session.api, event, result);
  if (done) {
    if (!at_once) session.spin_time.note_wait(SpinTime::Clock::now() - begin);
    if (result == CUDA_SUCCESS && recorded) recorded->passed();
    // The event has passed, so this returns at once; it makes the driver print the output of device code.
    if (result == CUDA_SUCCESS && session.capture.expects_output())
      result = session.api.cuEventSynchronize(event);
    return completed(session.replies, result);
  }
  if (!command.wants_reply()) return CUDA_SUCCESS;
  const uint64_t sequence = command.header.sequence;
  const CUcontext current = context->object;
  const CUresult deferred = session.replies.take_deferred();
  session.events.hold(event);
  // A weak reference: recording the event again deletes the Recorded, because the wait below may then have
  // seen the newer record.
  const auto wait = [&session, event, sequence, current, deferred, begin, weak = std::weak_ptr(recorded)] {
    make_current(session.api, current);
    const CUresult result = session.api.cuEventSynchronize(event);
    session.spin_time.note_wait(SpinTime::Clock::now() - begin);
    if (result == CUDA_SUCCESS) {
      if (const auto still = weak.lock()) still->passed();
    }
    session.events.release(event);
    session.replies.answer(sequence, deferred != CUDA_SUCCESS ? deferred : result);
    make_current(session.api, nullptr);
  };
  if (session.waits.submit(current, "a cuEventSynchronize call", wait)) return Outcome::parked();
  session.events.release(event);
  return deferred != CUDA_SUCCESS ? deferred : CUDA_ERROR_OUT_OF_MEMORY;
}

}  // namespace gpupool::worker::commands
