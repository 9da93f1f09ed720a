#include "protocol/wire/commands.h"
#include "server/worker/handlers/commands.h"
#include "server/worker/session/teardown.h"

namespace gpupool::worker::commands {
namespace {

// Translates the body's device to the library's number; -1: the session has no such device.
template <class Body>
std::optional<Body> with_device(const VisibleDevices& visible, Command& command) {
  auto body = read_exact_body<Body>(command);
  if (body) body->device = visible.find(body->device).value_or(-1);
  return body;
}

bool is_context_handle(uint64_t handle) {
  return cuda::kind_of(handle) == cuda::Kind::context;
}

Outcome context_wait_failed() {
  return Outcome::malformed("work in a destroyed context did not end within 10 s");
}

// CU_CTX_COREDUMP_ENABLE and CU_CTX_USER_COREDUMP_ENABLE, which older headers lack. With them the driver
// would write the tenant's memory to a file or make a pipe on this host, and abort the worker at a kernel's
// fault.
constexpr uint32_t kCoreDumpFlags = 0x20 | 0x40;

uint32_t flags_for_driver(uint32_t flags) {
  return flags & ~kCoreDumpFlags;
}

// Retires the command's sequence number in any case: the client may reuse the context's addresses afterwards.
class Retire {
 public:
  Retire(DeviceMemory& memory, const Command& command)
      : memory_(memory), sequence_(command.header.sequence) {}
  ~Retire() { memory_.retire(sequence_); }

 private:
  DeviceMemory& memory_;
  const uint64_t sequence_;
};

// Removes the context from the worker's tables. The caller destroys it on the device next.
void remove(Contexts& contexts, HandleTable& table, ContextState& context) {
  contexts.enter(nullptr);
  table.unbind(context.handle);
  contexts.remove(context.handle);
}

// Call once the session has a context of its own.
void drop_idle_context(Session& session) {
  IdleContext& idle = session.start.idle_context;
  if (idle.held()) session.memory.uncharge(kIdleContextDevice, idle.bytes);
  idle.release();
}

void add(Session& session, uint64_t handle, CUcontext object, int device, bool primary, GreenContext green,
         MemoryCharges::PendingContext& pending) {
  ContextState& added = *session.contexts.add(handle, object, device, primary);
  added.green = green;
  pending.transfer_to(added);
  session.table.bind(cuda::Kind::context, handle, object);
  wire::Writer(session.replies.body).put(handle);
}

// `create` creates a green context and its CUcontext.
template <class Create>
CUresult make_green(const DeviceApi& api, int device, CUcontext* object, Create&& create) {
  CUcontext primary = nullptr;
  CUresult result = api.cuDevicePrimaryCtxRetain(&primary, device);
  if (result != CUDA_SUCCESS) return result;
  result = create();
  if (result == CUDA_SUCCESS) set_primary_of(*object, primary);
  api.cuDevicePrimaryCtxRelease_v2(device);  // the green context retains it
  return result;
}

// Creates a green context on the session's multiprocessors, for a session that does not have the whole
// device.
CUresult make_green(Session& session, int device, GreenContext* green, CUcontext* object) {
  return make_green(session.api, device, object, [&] {
    return session.partition.create(device, session.start.groups_of(device), green, object);
  });
}

// Destroys the client's green contexts of a primary context that is about to be destroyed. Returns false if a
// wait in one of them did not end.
bool destroy_green_contexts(Session& session, const ContextState& primary) {
  std::vector<uint64_t> greens;
  for (const auto& [handle, context] : session.contexts.all()) {
    if (context->root == &primary) greens.push_back(handle);
  }
  for (const uint64_t handle : greens) {
    ContextState& context = *session.contexts.find(handle);
    const MemoryCharges::ContextRelease release(session.memory_charges, context);
    if (!leave(session, context)) return false;
    const CUcontext object = context.object;
    const GreenContext green = context.green;
    remove(session.contexts, session.table, context);
    destroy_context_object(session, object, false, green);
  }
  return true;
}

#if CUDA_VERSION >= 12040
Outcome create_green(Session& session, const wire::CreateContext& body, uint64_t handle) {
  const auto description = session.table.resolve(cuda::Kind::resource_description, handle);
  if (!description) return CUDA_ERROR_INVALID_VALUE;
  ContextState* const root = session.contexts.find_primary(body.device);
  if (!root) return CUDA_ERROR_INVALID_CONTEXT;
  session.contexts.enter(nullptr);
  MemoryCharges::PendingContext pending(session.memory_charges, body.device);
  if (pending.result() != CUDA_SUCCESS) return pending.result();
  CUcontext object = nullptr;
  GreenContext green = nullptr;
  CUresult result = make_green(session.api, body.device, &object, [&] {
    return session.partition.create(body.device, static_cast<CUdevResourceDesc>(*description), &green,
                                    &object);
  });
  if (result != CUDA_SUCCESS) return result;
  result = pending.measure(object);
  if (result != CUDA_SUCCESS) {
    destroy_context_object(session, object, false, green);
    invalidate_current_context();
    return result;
  }
  add(session, body.handle, object, body.device, false, green, pending);
  session.contexts.find(body.handle)->root = root;
  return CUDA_SUCCESS;
}
#else
Outcome create_green(Session&, const wire::CreateContext&, uint64_t) {
  return CUDA_ERROR_NOT_SUPPORTED;
}
#endif

}  // namespace

Outcome retain_primary_context(Session& session, Command& command) {
  const auto body = with_device<wire::PrimaryContext>(session.start.visible, command);
  if (!body || !is_context_handle(body->handle)) return bad_body();
  if (body->device < 0) return CUDA_ERROR_INVALID_DEVICE;
  ContextState* const known = session.contexts.find_primary(body->device);
  if (known && known->handle != body->handle) return CUDA_ERROR_INVALID_VALUE;
  if (!known && (session.contexts.find(body->handle) || session.contexts.all().size() >= kMaxContexts)) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  if (known && known->retained == ~0u) return CUDA_ERROR_INVALID_VALUE;
  if (const uint32_t flags = flags_for_driver(body->flags);
      !known && flags != 0 && session.api.cuDevicePrimaryCtxSetFlags_v2) {
    const CUresult result = session.api.cuDevicePrimaryCtxSetFlags_v2(body->device, flags);
    if (result != CUDA_SUCCESS) return result;
  }
  CUcontext object = nullptr;
  if (known) {
    const CUresult result = session.api.cuDevicePrimaryCtxRetain(&object, body->device);
    if (result == CUDA_SUCCESS) ++known->retained;
    return result;
  }
  MemoryCharges::PendingContext pending(session.memory_charges, body->device);
  if (pending.result() != CUDA_SUCCESS) return pending.result();
  CUresult result = session.memory.with_reclaimed(
      body->device, [&] { return session.api.cuDevicePrimaryCtxRetain(&object, body->device); });
  if (result != CUDA_SUCCESS) return result;
  GreenContext green = nullptr;
  if (session.start.groups_of(body->device) != 0) result = make_green(session, body->device, &green, &object);
  const IdleContext& idle = session.start.idle_context;
  const uint64_t idle_bytes = idle.held() && body->device == kIdleContextDevice ? idle.bytes : 0;
  drop_idle_context(session);  // `object` may be the same context, which goes on
  if (result == CUDA_SUCCESS) result = pending.measure(object, idle_bytes);
  if (result != CUDA_SUCCESS) {
    destroy_context_object(session, object, true, green);
    session.api.cuDevicePrimaryCtxRelease_v2(body->device);
    return result;
  }
  add(session, body->handle, object, body->device, true, green, pending);
  return CUDA_SUCCESS;
}

Outcome release_primary_context(Session& session, Command& command) {
  const auto body = with_device<wire::PrimaryContext>(session.start.visible, command);
  if (!body) return bad_body();
  const Retire retire(session.memory, command);
  ContextState* const context = session.contexts.find_primary(body->device);
  if (!context || context->handle != body->handle) return CUDA_ERROR_INVALID_CONTEXT;
  if (--context->retained != 0) return session.api.cuDevicePrimaryCtxRelease_v2(body->device);
  if (!destroy_green_contexts(session, *context)) return context_wait_failed();
  const MemoryCharges::ContextRelease release(session.memory_charges, *context);
  if (!leave(session, *context)) return context_wait_failed();
  const CUcontext object = context->object;
  const GreenContext green = context->green;
  remove(session.contexts, session.table, *context);
  destroy_context_object(session, object, true, green);
  return session.api.cuDevicePrimaryCtxRelease_v2(body->device);
}

Outcome reset_primary_context(Session& session, Command& command) {
  const auto body = with_device<wire::PrimaryContext>(session.start.visible, command);
  if (!body) return bad_body();
  const Retire retire(session.memory, command);
  ContextState* const context = session.contexts.find_primary(body->device);
  if (!context) return CUDA_SUCCESS;  // nothing to reset
  if (context->handle != body->handle) return CUDA_ERROR_INVALID_CONTEXT;
  if (!destroy_green_contexts(session, *context)) return context_wait_failed();
  const MemoryCharges::ContextRelease release(session.memory_charges, *context);
  if (!leave(session, *context)) return context_wait_failed();
  // The reset ends all retains; the client retains the context again before its next use.
  const unsigned retained = context->retained;
  const CUcontext object = context->object;
  const GreenContext green = context->green;
  remove(session.contexts, session.table, *context);
  CUresult result = destroy_context_object(session, object, true, green);
  // A reset would destroy other green contexts of the primary context. Where the session uses one, the
  // primary context is only released.
  if (!green && session.api.cuDevicePrimaryCtxReset_v2)
    result = session.api.cuDevicePrimaryCtxReset_v2(body->device);
  for (unsigned i = 0; i < retained; ++i) session.api.cuDevicePrimaryCtxRelease_v2(body->device);
  return result;
}

Outcome create_context(Session& session, Command& command) {
  auto body = command.body.get<wire::CreateContext>();
  const bool green_wanted = (body.flags & wire::kGreenContext) != 0;
  const uint64_t description = green_wanted ? command.body.get<uint64_t>() : 0;
  if (!command.body.finished() || !is_context_handle(body.handle)) return bad_body();
  body.device = session.start.visible.find(body.device).value_or(-1);
  if (body.device < 0) return CUDA_ERROR_INVALID_DEVICE;
  if (session.contexts.find(body.handle)) return CUDA_ERROR_INVALID_VALUE;
  if (session.contexts.all().size() >= kMaxContexts) return CUDA_ERROR_OUT_OF_MEMORY;
  if (green_wanted) return create_green(session, body, description);
  if (!session.api.cuCtxCreate_v2 || !session.api.cuCtxDestroy_v2) return CUDA_ERROR_NOT_SUPPORTED;
  session.contexts.enter(nullptr);
  drop_idle_context(session);
  MemoryCharges::PendingContext pending(session.memory_charges, body.device);
  if (pending.result() != CUDA_SUCCESS) return pending.result();
  CUcontext object = nullptr;
  GreenContext green = nullptr;
  CUresult result = session.memory.with_reclaimed(body.device, [&] {
    return session.start.groups_of(body.device) != 0
               ? make_green(session, body.device, &green, &object)
               : session.api.cuCtxCreate_v2(&object, flags_for_driver(body.flags), body.device);
  });
  invalidate_current_context();  // creating a context makes it current
  if (result != CUDA_SUCCESS) return result;
  result = pending.measure(object);
  if (result != CUDA_SUCCESS) {
    destroy_context_object(session, object, false, green);
    invalidate_current_context();
    return result;
  }
  add(session, body.handle, object, body.device, false, green, pending);
  return CUDA_SUCCESS;
}

Outcome destroy_context(Session& session, Command& command) {
  const auto body = read_exact_body<wire::DestroyContext>(command);
  if (!body) return bad_body();
  const Retire retire(session.memory, command);
  ContextState* const context = session.contexts.find(body->handle);
  if (!context || context->primary) return CUDA_ERROR_INVALID_CONTEXT;
  const MemoryCharges::ContextRelease release(session.memory_charges, *context);
  if (!leave(session, *context)) return context_wait_failed();
  const CUcontext object = context->object;
  const GreenContext green = context->green;
  remove(session.contexts, session.table, *context);
  return destroy_context_object(session, object, false, green);
}

}  // namespace gpupool::worker::commands
