#include "client/api/copy_run.h"

#include <algorithm>
#include <utility>

#include "client/copies/transfer.h"
#include "client/graphs/capture.h"
#include "client/memory/compared_copies.h"
#include "client/memory/host_memory.h"
#include "client/memory/shared_name.h"
#include "client/streams/host_function.h"
#include "client/streams/side_stream.h"

namespace gpupool::client {
namespace {

using Path = CopyRoute::Path;

// --- Facts ---

CopyDirection direction_of(const CopyBox& box) {
  if (box.from.on_device) return box.to.on_device ? CopyDirection::on_devices : CopyDirection::from_device;
  return box.to.on_device ? CopyDirection::to_device : CopyDirection::in_host;
}

const CopyEnd& host_end(const CopyBox& box) {
  return box.to.on_device ? box.from : box.to;
}
const CopyEnd& device_end(const CopyBox& box) {
  return box.to.on_device ? box.to : box.from;
}

// True if all ends in host memory are pinned.
bool is_pinned(const CopyBox& box) {
  const auto good = [&](const CopyEnd& end) {
    return end.on_device || host_memory().is_pinned(host_pointer(end.address), span_of(box, end));
  };
  return good(box.from) && good(box.to);
}

// True if a copy from the device has yet to write to this memory.
bool awaits_data_in(const void* memory, uint64_t bytes) {
  return std::any_of(sessions().begin(), sessions().end(),
                     [&](const auto& session) { return session->receiver().awaits_data_in(memory, bytes); });
}

// True if a synchronous copy to the device must be complete when the call returns. Usually the call returns
// when its data has been read, and later work of all streams waits for the copy. That is not enough if
// earlier work of the legacy stream writes to the program's memory, or if another process shares device
// memory: both could be observed too early. And it could deadlock if a stream is held or waits for a value.
bool must_complete_before_return(const Context& context) {
  return streams_may_block() || context.writes_host_memory.load(std::memory_order_relaxed) ||
         memory_is_shared();
}

// Returns the context in which the device memory of this end is used.
Context& context_of_end(const CopyCaller& caller, const CopyEnd& end) {
  if (end.context) return *end.context;
  Context* const side = side_context(*caller.context, end.address);
  return side ? *side : *caller.context;
}

void add_facts_on_devices(const CopyCaller& caller, const CopyBox& box, CopyFacts& facts) {
  facts.legacy_stream = !caller.stream;
  if (!facts.synchronous && !facts.legacy_stream) return;
  facts.two_devices = context_of_end(caller, box.from).device != context_of_end(caller, box.to).device;
  if (!facts.synchronous) return;
  facts.reads_mirror = mirrors().overlaps(box.from.address, span_of(box, box.from)) ||
                       (compared_copies().any() && compared_copies().host_of(box.from.address));
}

void add_facts_host_device(const CopyCaller& caller, const CopyBox& box, CopyFacts& facts) {
  const CopyEnd& host = host_end(box);
  void* const start = host_pointer(host.address);
  const uint64_t span = span_of(box, host);
  facts.other_device = side_context(*caller.context, device_end(box).address) != nullptr;
  facts.pinned = !facts.synchronous && is_pinned(box);
  // Only asks: the copy that uses the memory marks it.
  facts.mapped = host_memory().any_shared() &&
                 host_memory().use_shared(start, span, *caller.context, false, true).has_value();
  if (facts.direction != CopyDirection::to_device) return;
  facts.written = host_memory().is_written(start);
  facts.source_pending = host_functions_pending() || streams_held() || awaits_data_in(start, span);
  facts.must_complete = facts.synchronous && must_complete_before_return(*caller.context);
}

// The facts that before_copy() may change.
void add_facts(const CopyCaller& caller, const CopyBox& box, CopyFacts& facts) {
  if (facts.direction == CopyDirection::on_devices) add_facts_on_devices(caller, box, facts);
  if (facts.between_servers)
    facts.pinned = !facts.synchronous && is_pinned(box);
  else if (facts.direction == CopyDirection::to_device || facts.direction == CopyDirection::from_device)
    add_facts_host_device(caller, box, facts);
}

// --- Routes ---

// Pinned memory is read when the stream reaches the copy, because earlier work of the stream may still write
// to it (a host function, a copy from the device). The stream is held until the data has been sent and copied
// in another stream.
CUresult copy_to_device_later(const CopyCaller& caller, const CopyRoute& route, uint64_t to, const void* from,
                              const Rows& rows) {
  CUstream own = nullptr;
  Session& session = *caller.session;
  Context& context = *caller.context;
  if (const CUresult result = internal_stream(context, &own); result != CUDA_SUCCESS) return result;
  return run_in_stream(session, context, caller.stream, [&session, &context, own, to, from, rows, route] {
    (void)copy_to_device(session, context, own, to, from, rows, route.order, route.source);
    return cuda::handle_bits(own);
  });
}

// Memory that the server maps too: the device accesses it directly when the stream reaches the copy.
CUresult copy_in_place(const CopyCaller& caller, const CopyRoute& route, const CopyBox& box) {
  const bool up = box.to.on_device;
  const CopyEnd& host = host_end(box);
  const CopyEnd& device = device_end(box);
  const auto memory = host_memory().use_shared(host_pointer(host.address), span_of(box, host),
                                               *caller.context, !up, caller.wait);
  if (!memory) return CUDA_ERROR_INVALID_VALUE;  // freed by another thread meanwhile
  const Rows rows = make_rows(box.width, box.height, host.pitch, device.pitch);
  CUresult result = CUDA_SUCCESS;
  for (uint64_t z = 0; z < box.depth && result == CUDA_SUCCESS; ++z) {
    const uint64_t offset = host.address - memory->address + z * host.slice;
    result = copy_shared(*caller.session, *caller.context, caller.stream, memory->id, offset,
                         device.address + z * device.slice, rows, up);
  }
  if (result == CUDA_SUCCESS && route.wait) result = cuStreamSynchronize(caller.stream);
  if (!up && !caller.wait) note_host_memory_write(*caller.context, caller.stream);
  return result;
}

// Sends or receives the data in `caller`'s stream.
CUresult move_slices(const CopyCaller& caller, const CopyRoute& route, const CopyBox& box) {
  const CopyEnd& host = host_end(box);
  const CopyEnd& device = device_end(box);
  const Rows rows = make_rows(box.width, box.height, host.pitch, device.pitch);
  CUresult result = CUDA_SUCCESS;
  for (uint64_t z = 0; z < box.depth && result == CUDA_SUCCESS; ++z) {
    const uint64_t address = device.address + z * device.slice;
    void* const memory = host_pointer(host.address + z * host.slice);
    if (route.path == Path::sent_late)
      result = copy_to_device_later(caller, route, address, memory, rows);
    else if (route.path == Path::sent)
      result = copy_to_device(*caller.session, *caller.context, caller.stream, address, memory, rows,
                              z + 1 == box.depth ? route.order : CopyOrder::in_stream, route.source);
    else
      result = copy_from_device(*caller.session, *caller.context, caller.stream, memory, address, rows,
                                route.wait);
  }
  return result;
}

// Copies through this process. `asked` has the program's context and stream; `caller` has those to use.
CUresult transfer(const CopyCaller& asked, const CopyCaller& caller, const CopyRoute& route,
                  const CopyBox& box) {
  CUresult result = route.source_first ? cuStreamSynchronize(caller.stream) : CUDA_SUCCESS;
  if (result == CUDA_SUCCESS) result = move_slices(caller, route, box);
  if (result != CUDA_SUCCESS) return result;
  if (route.path == Path::received) {
    // After queueing: another thread's wait may clear the flag before that.
    if (!route.wait) note_host_memory_write(*asked.context, asked.stream);
    return route.fetch_changes && compared_copies().any() ? compared_copies().after_other_wait()
                                                          : CUDA_SUCCESS;
  }
  if (!route.wait) return CUDA_SUCCESS;
  if (!asked.stream) asked.context->writes_host_memory.store(false, std::memory_order_relaxed);
  return synchronize_stream(*caller.context, caller.stream);
}

CUresult transfer_in_side_stream(const CopyCaller& caller, const CopyRoute& route, const CopyBox& box) {
  Context* const side = side_context(*caller.context, device_end(box).address);
  if (!side) return CUDA_ERROR_INVALID_VALUE;  // freed by another thread meanwhile
  CopyCaller on_side{caller.session, side, nullptr, caller.wait};
  CUresult result = route.stream_first ? synchronize_stream(*caller.context, caller.stream) : CUDA_SUCCESS;
  if (result == CUDA_SUCCESS)
    result = fork_to_side_stream(*caller.context, caller.stream, *side, &on_side.stream);
  if (result == CUDA_SUCCESS) result = transfer(caller, on_side, route, box);
  return result == CUDA_SUCCESS && route.join
             ? join_side_stream(*caller.context, caller.stream, *side, on_side.stream)
             : result;
}

CUresult run_on_server(const CopyCaller& caller, const CopyRoute& route, const CopyBox& box) {
  for (const CopyEnd* const end : {&box.from, &box.to}) {
    if (!route.contexts_first) break;
    Context* const side = side_context(*caller.context, end->address);
    const CUresult result = synchronize_context(side ? *side : *caller.context);
    if (result != CUDA_SUCCESS) return result;
  }
  const CUresult result = copy_on_server(*caller.context, caller.stream, box);
  return result == CUDA_SUCCESS && route.wait ? synchronize_stream(*caller.context, caller.stream) : result;
}

CUresult run_between_servers(const CopyCaller& caller, const CopyRoute& route, CopyBox box) {
  for (CopyEnd* end : {&box.from, &box.to}) {
    if (end->on_device && !end->context) end->context = caller.context;
  }
  return copy_between_servers(*caller.context, caller.stream, box, route.wait);
}

CUresult run_in_host(const CopyCaller& caller, const CopyRoute& route, const CopyBox& box) {
  const CUresult result = route.source_first ? cuStreamSynchronize(caller.stream) : CUDA_SUCCESS;
  if (result == CUDA_SUCCESS) move_rows(box);
  return result;
}

CUresult follow(const CopyCaller& caller, CopyRoute route, const CopyBox& box) {
  if (std::exchange(route.legacy_streams, false)) {
    return copy_in_legacy_streams(*caller.context, context_of_end(caller, box.from),
                                  context_of_end(caller, box.to), [&] { return follow(caller, route, box); });
  }
  switch (route.path) {
    case Path::refused:
    case Path::recorded: break;  // capture_copy()
    case Path::between_servers: return run_between_servers(caller, route, box);
    case Path::in_host: return run_in_host(caller, route, box);
    case Path::on_server: return run_on_server(caller, route, box);
    case Path::mapped: return copy_in_place(caller, route, box);
    case Path::sent:
    case Path::sent_late:
    case Path::received:
      return route.side_stream ? transfer_in_side_stream(caller, route, box)
                               : transfer(caller, caller, route, box);
  }
  return CUDA_ERROR_UNKNOWN;
}

}  // namespace

CUresult enter(CopyCaller& caller) {
  return require_stream_for_work(&caller.session, &caller.context, caller.stream);
}

std::optional<CUresult> capture_copy(const CopyCaller& caller, const CopyBox& box, CopyFacts& facts) {
  facts.capturing = capture::any();
  if (!facts.capturing) [[likely]]
    return std::nullopt;
  std::optional<CUresult> done;
  if (choose_route(facts).path == Path::refused) {
    const CUresult refused = capture::refuse(*caller.context, caller.stream);
    if (refused != CUDA_SUCCESS) done = refused;
  } else {
    done = capture::add(*caller.context, caller.stream, CU_GRAPH_NODE_TYPE_MEMCPY, [&](NodeWork& work) {
      work = CopyWork{describe(box), box};
      return facts.between_servers ? CUDA_ERROR_NOT_SUPPORTED : CUDA_SUCCESS;
    });
  }
  facts.capturing = false;  // another stream is
  return done;
}

CUresult before_copy(const CopyCaller& caller, const CopyBox& box, Mirrors::PendingWrite& use) {
  if (!mirrors().any() && !compared_copies().any()) [[likely]]
    return CUDA_SUCCESS;
  for (const CopyEnd* end : {&box.from, &box.to}) {
    const uint64_t bytes = span_of(box, *end);
    if (!end->on_device) {
      // Host end: fetch the device's changes first.
      const CUresult result = compared_copies().device_may_be_newer(end->address, bytes)
                                  ? synchronize_stream(*caller.context, caller.stream)
                                  : CUDA_SUCCESS;
      if (result != CUDA_SUCCESS) return result;
      continue;
    }
    const bool here = !end->context || end->context->session == caller.session;
    Context& context = here ? *caller.context : *end->context;
    const CUstream stream = here ? caller.stream : nullptr;
    CUresult result = mirrors().before_use(context, end->address, bytes, end == &box.to ? &use : nullptr);
    if (result == CUDA_SUCCESS && compared_copies().any())
      result = compared_copies().before_use(context, stream, end->address, bytes);
    if (result != CUDA_SUCCESS) return result;
  }
  return CUDA_SUCCESS;
}

CUresult run_copy(CopyCaller caller, CopyBox box) {
  if (const CUresult result = enter(caller); result != CUDA_SUCCESS) return result;
  if (is_empty(box)) return CUDA_SUCCESS;
  bool between_servers = false;
  if (const CUresult result = check_ends(box, *caller.session, between_servers); result != CUDA_SUCCESS)
    return result;
  CopyFacts facts{.direction = direction_of(box),
                  .bytes = box.width * box.height * box.depth,
                  .synchronous = caller.wait,
                  .between_servers = between_servers};
  if (const auto captured = capture_copy(caller, box, facts)) [[unlikely]]
    return *captured;
  Mirrors::PendingWrite use;
  if (const CUresult result = before_copy(caller, box, use); result != CUDA_SUCCESS) return result;
  add_facts(caller, box, facts);
  return follow(caller, choose_route(facts), box);
}

}  // namespace gpupool::client
