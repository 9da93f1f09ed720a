// Handlers for memory and events that the client shares with other processes of its tenant.
#include "protocol/wire/sharing.h"

#include <algorithm>

#include "server/worker/handlers/commands.h"

namespace gpupool::worker::commands {
namespace {

Outcome reply_name(Replies& replies, CUresult result, const wire::SharedName& name) {
  if (result == CUDA_SUCCESS) wire::Writer(replies.body).put(name);
  return result;
}

}  // namespace

Outcome export_memory(Session& session, Command& command) {
  const auto body = read_exact_body<wire::ExportMemory>(command);
  if (!body) return bad_body();
  session.contexts.enter_named(command.header.context);
  wire::SharedName name{};
  ExportedHandles::Memory memory;
  uint64_t offset = 0;
  CUresult result = CUDA_SUCCESS;
  if (body->memory != 0) {
    const auto object = session.table.resolve(cuda::Kind::memory, body->memory);
    if (!object) return CUDA_ERROR_INVALID_VALUE;
    result = session.virtual_memory.share(reinterpret_cast<uintptr_t>(*object), &memory);
  } else {
    result = session.memory.share(body->address, &memory, &offset);
  }
  if (result == CUDA_SUCCESS) result = session.exported_handles.export_handle(memory, &name);
  name.offset = offset;
  return reply_name(session.replies, result, name);
}

Outcome import_memory(Session& session, Command& command) {
  const auto body = read_exact_body<wire::ImportMemory>(command);
  if (!body) return bad_body();
  session.contexts.enter_named(command.header.context);
  ExportedHandles::Fetched fetched;
  CUresult result = session.exported_handles.fetch(body->name, &fetched);
  if (result != CUDA_SUCCESS) return result;
  if (!fetched.memory) return CUDA_ERROR_INVALID_VALUE;
  if (fetched.own && (body->flags & wire::kRejectOwnMemory) != 0) return CUDA_ERROR_INVALID_CONTEXT;
  const auto& visible = session.start.visible.ordinals();
  const auto device = std::find(visible.begin(), visible.end(), fetched.memory->device);
  if (device == visible.end() && !fetched.memory->is_multicast()) return CUDA_ERROR_INVALID_DEVICE;
  CUmemGenericAllocationHandle handle = 0;
  result = session.virtual_memory.import(fetched.descriptor, *fetched.memory, &handle);
  if (result != CUDA_SUCCESS) return result;
  session.table.bind(cuda::Kind::memory, body->memory,
                     reinterpret_cast<void*>(static_cast<uintptr_t>(handle)));
  wire::Writer(session.replies.body)
      .put(wire::ImportedMemory{
          fetched.memory->size, fetched.memory->handle_types,
          fetched.memory->is_multicast() ? wire::kNoDevice : static_cast<int32_t>(device - visible.begin()),
          0});
  return CUDA_SUCCESS;
}

Outcome export_event(Session& session, Command& command) {
  const auto body = read_exact_body<wire::ExportEvent>(command);
  if (!body) return bad_body();
  ContextState* const context = session.contexts.enter_named(command.header.context);
  if (!context) return CUDA_ERROR_INVALID_CONTEXT;
  if (!session.api.cuIpcGetEventHandle) return CUDA_ERROR_NOT_SUPPORTED;
  const auto object = session.table.resolve(cuda::Kind::event, body->event);
  if (!object || !*object) return CUDA_ERROR_INVALID_HANDLE;
  ExportedHandles::Event event{static_cast<CUevent>(*object), context, {}};
  wire::SharedName name{};
  CUresult result = session.api.cuIpcGetEventHandle(&event.handle, event.event);
  if (result == CUDA_SUCCESS) result = session.exported_handles.export_handle(event, &name);
  return reply_name(session.replies, result, name);
}

Outcome import_event(Session& session, Command& command) {
  const auto body = read_exact_body<wire::ImportEvent>(command);
  if (!body) return bad_body();
  if (!session.contexts.enter_named(command.header.context)) return CUDA_ERROR_INVALID_CONTEXT;
  if (!session.api.cuIpcOpenEventHandle) return CUDA_ERROR_NOT_SUPPORTED;
  ExportedHandles::Fetched fetched;
  CUresult result = session.exported_handles.fetch(body->name, &fetched);
  if (result != CUDA_SUCCESS) return result;
  if (!fetched.event) return CUDA_ERROR_INVALID_VALUE;
  if (fetched.own) return CUDA_ERROR_INVALID_CONTEXT;
  CUevent event = nullptr;
  result = session.api.cuIpcOpenEventHandle(&event, *fetched.event);
  if (result != CUDA_SUCCESS) return result;
  session.contexts.stop_tracking_event(event);
  session.table.bind(cuda::Kind::event, body->event, event);
  return result;
}

}  // namespace gpupool::worker::commands
