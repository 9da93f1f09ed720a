#include "server/worker/session/teardown.h"

#include <chrono>
#include <utility>

#include "server/worker/handlers/host_function.h"
#include "server/worker/session/session.h"

namespace gpupool::worker {
namespace {

constexpr std::chrono::milliseconds kCheckEndEvery{100};  // for the end of the connection
constexpr std::chrono::seconds kLongestQuiesce{10};       // for waits in a context that is being destroyed

// Executes the kept commands of a context that is about to be destroyed as far as possible, and drops the
// rest. Returns false if the session is over.
bool empty_backlog(Session& session, ContextState& context, std::chrono::steady_clock::time_point deadline) {
  while (session.gates.any_in(context) || session.backlog.any_in(context)) {
    session.graphs.give_up_launches(context);
    session.gates.open_numbered(context);
    if (!session.executor.settle()) return false;
    if (!session.gates.any_in(context) && !session.backlog.any_in(context)) break;
    if (session.outbox.over() || std::chrono::steady_clock::now() >= deadline) break;
    session.gates.wait(kCheckEndEvery);
  }
  for (const Backlog::KeptCommand& kept : session.backlog.remove(context)) {
    if (const auto copy = session.copies.bulk.take_announced(kept.header.sequence)) {
      copy->cancel();
      session.copies.bulk.remove(kept.header.sequence);
    }
    if (kept.header.id == static_cast<uint16_t>(wire::Command::free_memory))
      session.memory.retire(kept.header.sequence);
    if (commands::has_host_functions(kept.header.id)) {
      commands::report_not_called(session.outbox, kept.header.sequence, CUDA_ERROR_CONTEXT_IS_DESTROYED);
    }
    if ((kept.header.flags & wire::kWantsReply) != 0)
      session.outbox.send(wire::MessageKind::reply, CUDA_ERROR_CONTEXT_IS_DESTROYED, kept.header.sequence);
  }
  return true;
}

}  // namespace

void before_stream_destroyed(Session& session, StreamState& stream) {
  session.graphs.give_up_launches(stream);
  session.gates.drop(stream);
  session.backlog.forget(stream);
  session.compute.before_stream_destroyed(stream);
  session.copies.staging.close_slab(stream);
  if (!stream.used) return;
  ContextState& context = *stream.context;
  // Most of the oldest events have passed, so the list stays short even without frees.
  std::erase_if(context.destroyed_stream_events, [&](CUevent event) {
    if (session.api.cuEventQuery(event) == CUDA_ERROR_NOT_READY) return false;
    context.events->give(event);
    return true;
  });
  const CUevent event = context.events->take();
  if (event && session.api.cuEventRecord(event, stream.stream) == CUDA_SUCCESS) {
    context.destroyed_stream_events.push_back(event);
    return;
  }
  if (event) context.events->give(event);
  session.api.cuStreamSynchronize(stream.stream);
}

bool leave(Session& session, ContextState& context) {
  session.scrubber.finish_all();  // zeroing may be queued behind any work on the device
  const Waiting waiting("copies and waits in a context that is being destroyed");
  const auto deadline = std::chrono::steady_clock::now() + kLongestQuiesce;
  if (!empty_backlog(session, context, deadline)) return false;
  session.contexts.enter(&context);
  session.compute.leave(context);
  if (!session.waits.drain(context.object, deadline) || !session.copies.bulk.drain(context.object, deadline))
    return false;
  session.api.cuCtxSynchronize();
  session.code.postponed_unloads.run_those_of(context.object,
                                              [&session](uint64_t handle) { session.forget_code(handle); });
  session.replies.publish();
  session.copies.small.drop_context(context);
  for (const CUevent event : context.destroyed_stream_events) context.events->give(event);
  context.destroyed_stream_events.clear();
  if (context.barrier) context.events->give(std::exchange(context.barrier, nullptr));
  session.departure.leave(context);
  session.scrubber.leave(context);
  session.copies.staging.drop_context(context, false);
  session.shared_memory.drop_context(context);
  session.memory.drop_context(context, false);
  session.exported_handles.withdraw_events(context);
  session.graphs.drop(context);
  session.code.linkers.drop(context);
  session.arrays.drop_objects(context);
  session.table.drop_context(context);
  session.compute.drop(context);
  session.timeline.drop(context);
  context.timed_events->clear();
  context.events->clear();
  return true;
}

CUresult destroy_context_object(Session& session, CUcontext object, bool primary, GreenContext green) {
  if (green) {
    set_primary_of(object, nullptr);
    session.partition.destroy(green);
    return CUDA_SUCCESS;
  }
  if (primary || !session.api.cuCtxDestroy_v2) return CUDA_SUCCESS;
  return session.api.cuCtxDestroy_v2(object);
}

void tear_down(Session& session) {
  session.migration_requests.end();
  session.checkpoint.end();
  session.moves.end();
  session.compute.stop();
  session.timeline.stop();
  session.copies.connections.close();
  session.copies.remote.close();
  session.peers.stop();
  session.departure.stop();
  for (auto& [handle, context] : session.contexts.all()) {  // ends waits for data that will not come any more
    session.contexts.enter(context.get());
    session.copies.bulk.cancel(context->object);
  }
  session.backlog.clear();
  session.gates.clear();
  session.copies.connections.stop();
  session.copies.remote.stop();
  session.waits.stop();
  for (auto& [handle, context] : session.contexts.all()) {
    session.contexts.enter(context.get());
    session.api.cuCtxSynchronize();
    session.departure.leave(*context);
    session.scrubber.leave(*context);
    session.copies.staging.drop_context(*context, false);
    session.shared_memory.drop_context(*context);
    session.copies.small.drop_context(*context);
    session.code.linkers.drop(*context);
    session.arrays.drop_objects(*context);
  }
  session.graphs.clear();
  session.table.destroy_all();
  session.virtual_memory.drop_all();
  session.memory.drop_all();
  session.checkpoint_image.drop();
  for (auto& [handle, context] : session.contexts.all()) {
    session.contexts.enter(context.get());
    for (const CUevent event : context->destroyed_stream_events) context->events->give(event);
    if (context->barrier) context->events->give(std::exchange(context->barrier, nullptr));
    session.compute.drop(*context);
    session.timeline.drop(*context);
    context->timed_events->clear();
    context->events->clear();
    session.contexts.enter(nullptr);
    destroy_context_object(session, context->object, context->primary, context->green);
    if (!context->primary) continue;
    for (; context->retained != 0; --context->retained)
      session.api.cuDevicePrimaryCtxRelease_v2(context->device);
  }
  session.contexts.enter(nullptr);
  session.memory.release_range();
  session.memory.release_avoided();
}

}  // namespace gpupool::worker
