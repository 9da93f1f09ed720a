#include "protocol/wire/commands.h"
#include "server/worker/handlers/commands.h"

namespace gpupool::worker::commands {

Outcome map_memory(Session& session, Command& command) {
  const auto body = read_exact_body<wire::MapMemory>(command);
  if (!body) return bad_body();
  session.contexts.enter_named(command.header.context);
  const auto& granularity = session.start.granularity;
  const auto device = session.start.visible.find(body->device);
  if (!device || static_cast<size_t>(*device) >= granularity.size()) return CUDA_ERROR_INVALID_DEVICE;
  session.memory.collect();
  uint32_t peers = 0;  // bit mask of the library's device numbers
  for (int number = 0; number < 32; ++number) {
    const auto peer = (body->peers >> number & 1) != 0 ? session.start.visible.find(number) : std::nullopt;
    if (peer && *peer < 32) peers |= 1u << *peer;
  }
  const CUresult result = session.memory.map(body->address, body->size, *device,
                                             granularity[static_cast<size_t>(*device)], peers);
  if (result == CUDA_SUCCESS) wire::Writer(session.replies.body).put(body->address);
  return result;
}

Outcome free_memory(Session& session, Command& command) {
  const auto body = read_exact_body<wire::FreeMemory>(command);
  if (!body) return bad_body();
  ContextState* context = session.contexts.enter_named(command.header.context);
  std::vector<StreamState*> streams;
  std::vector<CUevent> events;
  if (body->stream != wire::kAllStreams) {
    StreamState* const stream = session.table.find_stream(body->stream);
    if (!stream) {
      session.memory.retire(command.header.sequence);
      return context ? CUDA_ERROR_INVALID_HANDLE : CUDA_ERROR_INVALID_CONTEXT;
    }
    context = stream->context;
    session.contexts.enter(context);
    streams.push_back(stream);
  } else if (context) {
    // Earlier work is waited for by earlier frees, and frees retire in order.
    streams.swap(context->used);
    for (StreamState* const stream : streams) stream->used = false;
    events.swap(context->destroyed_stream_events);
  }
  const CUresult result = session.memory.free(body->address, body->size, command.header.sequence, context,
                                              streams, std::move(events));
  // The client may reuse the addresses in any case.
  if (result != CUDA_SUCCESS) session.memory.retire(command.header.sequence);
  return result;
}

}  // namespace gpupool::worker::commands
