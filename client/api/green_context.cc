// Green contexts: a subset of a device's multiprocessors as a context. The server splits and describes
// resources; the program's CUdevResource contains the number by which the server knows one. A green context
// is a Context that shares memory, modules and events with its device's primary context (Context::root).
#include <algorithm>
#include <cstring>

#include "client/streams/cross_server.h"
#include "client/streams/stream.h"
#include "protocol/driver/export_tables.h"
#include "protocol/driver/exports.h"
#include "protocol/wire/commands.h"

#if CUDA_VERSION >= 12040

using namespace gpupool;
using namespace gpupool::client;

namespace {

struct Green : Object {
  Context* made = nullptr;
};

// Stored in the private part of a CUdevResource. Programs may overwrite it nevertheless, so it is checked.
struct Origin {
  uint64_t number;
  uint32_t server;  // Session::index() + 1
  uint32_t multiprocessors;
};
static_assert(sizeof(Origin) <= sizeof(CUdevResource::_internal_padding));

CUdevResource make_resource(const wire::ResourceInfo& info, const Session& session) {
  CUdevResource resource{};
  if (info.number == 0) return resource;
  const Origin origin{info.number, session.index() + 1, info.multiprocessors};
  std::memcpy(resource._internal_padding, &origin, sizeof origin);
  resource.type = CU_DEV_RESOURCE_TYPE_SM;
  resource.sm.smCount = info.multiprocessors;
#if CUDA_VERSION >= 13000
  resource.sm.minSmPartitionSize = info.smallest;
  resource.sm.smCoscheduledAlignment = info.alignment;
#endif
  return resource;
}

CUresult read(const CUdevResource& resource, Session** session, uint64_t* number) {
  if (resource.type != CU_DEV_RESOURCE_TYPE_SM) return CUDA_ERROR_INVALID_RESOURCE_TYPE;
  Origin origin;
  std::memcpy(&origin, resource._internal_padding, sizeof origin);
  const auto server = std::find_if(sessions().begin(), sessions().end(),
                                   [&](const auto& known) { return known->index() + 1 == origin.server; });
  if (server == sessions().end() || origin.number == 0 || origin.multiprocessors != resource.sm.smCount)
    return CUDA_ERROR_INVALID_VALUE;
  *session = server->get();
  *number = origin.number;
  return CUDA_SUCCESS;
}

CUresult malformed(Session& session) {
  session.fail({ErrorCode::malformed, "protocol error: the reply does not match the call"});
  return Session::failure();
}

// Returns the resource of a context or, if null, of the device.
CUresult get(const Device& device, Context* context, CUdevResource* resource, CUdevResourceType type) {
  if (!resource) return CUDA_ERROR_INVALID_VALUE;
  if (type != CU_DEV_RESOURCE_TYPE_SM) return CUDA_ERROR_INVALID_RESOURCE_TYPE;
  Session& session = *device.session;
  const wire::DeviceResource body{Session::handle_of(context), device.server_ordinal,
                                  static_cast<uint32_t>(type)};
  wire::Buffer reply;
  CUresult result = session.call(wire::Command::device_resource, context, body, reply);
  if (result == CUDA_ERROR_INVALID_CONTEXT && !context) {
    // A session on a part of the GPU has the resources of its contexts, so a context must exist.
    if (result = ensure_on_server(*device.primary); result != CUDA_SUCCESS) return result;
    result = session.call(wire::Command::device_resource, nullptr, body, reply);
  }
  if (result != CUDA_SUCCESS) return result;
  wire::Reader reader(reply);
  const auto info = reader.get<wire::ResourceInfo>();
  if (!reader.finished()) return malformed(session);
  *resource = make_resource(info, session);
  return CUDA_SUCCESS;
}

CUresult split(CUdevResource* parts, unsigned* groups, const CUdevResource* whole, CUdevResource* remaining,
               unsigned flags, unsigned least) {
  constexpr unsigned kKnown = 3;
  if (!groups || !whole || (flags & ~kKnown) != 0) return CUDA_ERROR_INVALID_VALUE;
  Session* session = nullptr;
  wire::SplitResource body{};
  if (const CUresult result = read(*whole, &session, &body.resource); result != CUDA_SUCCESS) return result;
  body.groups = parts ? std::min(*groups, wire::kMaxResourceGroups) : 0;
  body.flags = flags;
  body.least = least;
  body.only_count = parts ? 0 : 1;
  wire::Buffer reply;
  if (const CUresult result = session->call(wire::Command::split_resource, nullptr, body, reply);
      result != CUDA_SUCCESS)
    return result;
  wire::Reader reader(reply);
  const auto head = reader.get<wire::ResourceGroups>();
  if (head.given > body.groups) return malformed(*session);
  for (uint32_t i = 0; i < head.given; ++i)
    parts[i] = make_resource(reader.get<wire::ResourceInfo>(), *session);
  const auto rest = reader.get<wire::ResourceInfo>();
  if (!reader.finished()) return malformed(*session);
  *groups = head.groups;
  if (remaining) *remaining = make_resource(rest, *session);
  return CUDA_SUCCESS;
}

CUresult describe(CUdevResourceDesc* description, const CUdevResource* resources, unsigned count) {
  if (!description || !resources || count == 0 || count > wire::kMaxResourceGroups)
    return CUDA_ERROR_INVALID_VALUE;
  Session* session = nullptr;
  std::vector<uint64_t> numbers(count);
  for (unsigned i = 0; i < count; ++i) {
    Session* its = nullptr;
    if (const CUresult result = read(resources[i], &its, &numbers[i]); result != CUDA_SUCCESS) return result;
    if (session && its != session) return CUDA_ERROR_INVALID_RESOURCE_CONFIGURATION;
    session = its;
  }
  const uint64_t handle = session->mint(Kind::resource_description, std::make_unique<Object>());
  if (handle == 0) return CUDA_ERROR_OUT_OF_MEMORY;
  wire::Buffer reply;
  const CUresult result = session->call(
      static_cast<uint16_t>(wire::Command::describe_resources), nullptr,
      [&](wire::Writer& writer) {
        writer.put(wire::DescribeResources{handle, count, 0});
        writer.put_bytes(numbers.data(), numbers.size() * sizeof numbers[0]);
      },
      reply);
  if (result != CUDA_SUCCESS) {
    handles().retire(handle);
    return result;
  }
  *description = cuda::handle_from_bits<CUdevResourceDesc>(handle);
  return CUDA_SUCCESS;
}

// Creates the context on the server. The primary context must be retained.
CUresult create(Device& device, const Object& description, CUgreenCtx* out) {
  auto fresh = std::make_unique<Context>();
  Context& context = *fresh;
  context.device = &device;
  context.root = device.primary;
  context.root_epoch = device.primary->epoch.load();
  context.flags = device.primary->flags;
  context.id = new_context_id();
  context.on_server = true;
  Session& session = *device.session;
  const uint64_t handle = session.mint(Kind::context, std::move(fresh));
  if (handle == 0) return CUDA_ERROR_OUT_OF_MEMORY;
  auto green = std::make_unique<Green>();
  green->made = &context;
  context.green = session.mint(Kind::green_context, std::move(green));
  wire::Buffer reply;
  CUresult result = context.green == 0 ? CUDA_ERROR_OUT_OF_MEMORY : CUDA_SUCCESS;
  if (result == CUDA_SUCCESS) {
    result = session.call(
        static_cast<uint16_t>(wire::Command::create_context), nullptr,
        [&](wire::Writer& writer) {
          writer.put(wire::CreateContext{handle, device.server_ordinal, wire::kGreenContext});
          writer.put(description.handle);
        },
        reply);
  }
  if (result == CUDA_SUCCESS) {
    *out = cuda::handle_from_bits<CUgreenCtx>(context.green);
    return CUDA_SUCCESS;
  }
  if (context.green != 0) handles().retire(context.green);
  handles().retire(handle);
  return result;
}

CUresult create(CUgreenCtx* out, CUdevResourceDesc given, CUdevice ordinal, unsigned flags) {
  if (const CUresult result = ready(); result != CUDA_SUCCESS) return result;
  if (!out || flags != CU_GREEN_CTX_DEFAULT_STREAM) return CUDA_ERROR_INVALID_VALUE;
  Device* const device = find_device(ordinal);
  if (!device) return CUDA_ERROR_INVALID_DEVICE;
  const Object* const description = handles().find(Kind::resource_description, cuda::handle_bits(given));
  if (!description || description->session != device->session) return CUDA_ERROR_INVALID_VALUE;
  CUcontext primary = nullptr;
  CUresult result = cuDevicePrimaryCtxRetain(&primary, ordinal);
  if (result != CUDA_SUCCESS) return result;
  result = create(*device, *description, out);
  if (result != CUDA_SUCCESS) cuDevicePrimaryCtxRelease_v2(ordinal);
  return result;
}

CUresult destroy(Context& context) {
  await_cross_server_work(context);
  cuda::context_local_storage().destroy_context(cuda::handle_from_bits<CUcontext>(context.handle));
  const CUresult result =
      context.session->post(wire::Command::destroy_context, nullptr, wire::DestroyContext{context.handle});
  auto& stack = thread_state().contexts;
  if (!stack.empty() && stack.back() == context.handle) stack.pop_back();
  const CUdevice device = context.device->ordinal;
  // Else the primary context was reset since.
  const bool counted = context.root_epoch == context.root->epoch.load();
  handles().retire(context.green);
  handles().retire(context.handle);
  if (counted) cuDevicePrimaryCtxRelease_v2(device);
  return result;
}

template <class Body>
CUresult on_green(CUgreenCtx given, Body&& body) noexcept {
  return guarded([&]() -> CUresult {
    if (const CUresult result = ready(); result != CUDA_SUCCESS) return result;
    const auto* const green = handles().find_as<Green>(Kind::green_context, cuda::handle_bits(given));
    return green ? body(*green->made) : CUDA_ERROR_INVALID_CONTEXT;
  });
}

template <class Body>
CUresult when_ready(Body&& body) noexcept {
  return guarded([&]() -> CUresult {
    const CUresult result = ready();
    return result == CUDA_SUCCESS ? body() : result;
  });
}

CUcontext as_cuda(const Context& context) {
  return cuda::handle_from_bits<CUcontext>(context.handle);
}

}  // namespace

CUDA_EXPORT CUresult cuDeviceGetDevResource(CUdevice ordinal, CUdevResource* resource,
                                            CUdevResourceType type) {
  return when_ready([&]() -> CUresult {
    const Device* const device = find_device(ordinal);
    return device ? get(*device, nullptr, resource, type) : CUDA_ERROR_INVALID_DEVICE;
  });
}

CUDA_EXPORT CUresult cuCtxGetDevResource(CUcontext given, CUdevResource* resource, CUdevResourceType type) {
  return when_ready([&]() -> CUresult {
    auto* const context = handles().find_as<Context>(Kind::context, cuda::handle_bits(given));
    return context ? get(*context->device, context, resource, type) : CUDA_ERROR_INVALID_CONTEXT;
  });
}

CUDA_EXPORT CUresult cuGreenCtxGetDevResource(CUgreenCtx green, CUdevResource* resource,
                                              CUdevResourceType type) {
  return on_green(green, [&](Context& context) { return get(*context.device, &context, resource, type); });
}

CUDA_EXPORT CUresult cuDevSmResourceSplitByCount(CUdevResource* parts, unsigned int* groups,
                                                 const CUdevResource* whole, CUdevResource* remaining,
                                                 unsigned int flags, unsigned int least) {
  return when_ready([&] { return split(parts, groups, whole, remaining, flags, least); });
}

CUDA_EXPORT CUresult cuDevResourceGenerateDesc(CUdevResourceDesc* description, CUdevResource* resources,
                                               unsigned int count) {
  return when_ready([&] { return describe(description, resources, count); });
}

CUDA_EXPORT CUresult cuGreenCtxCreate(CUgreenCtx* green, CUdevResourceDesc description, CUdevice device,
                                      unsigned int flags) {
  return guarded([&] { return create(green, description, device, flags); });
}

CUDA_EXPORT CUresult cuGreenCtxDestroy(CUgreenCtx green) {
  return on_green(green, [](Context& context) { return destroy(context); });
}

CUDA_EXPORT CUresult cuCtxFromGreenCtx(CUcontext* context, CUgreenCtx green) {
  return on_green(green, [&](Context& made) -> CUresult {
    if (!context) return CUDA_ERROR_INVALID_VALUE;
    *context = as_cuda(made);
    return CUDA_SUCCESS;
  });
}

CUDA_EXPORT CUresult cuGreenCtxRecordEvent(CUgreenCtx green, CUevent event) {
#if CUDA_VERSION >= 12050
  return on_green(green, [&](Context& context) { return cuCtxRecordEvent(as_cuda(context), event); });
#else
  return on_green(green, [](Context&) { return CUDA_ERROR_NOT_SUPPORTED; });
#endif
}

CUDA_EXPORT CUresult cuGreenCtxWaitEvent(CUgreenCtx green, CUevent event) {
#if CUDA_VERSION >= 12050
  return on_green(green, [&](Context& context) { return cuCtxWaitEvent(as_cuda(context), event); });
#else
  return on_green(green, [](Context&) { return CUDA_ERROR_NOT_SUPPORTED; });
#endif
}

#if CUDA_VERSION >= 12050
CUDA_EXPORT CUresult cuGreenCtxStreamCreate(CUstream* stream, CUgreenCtx green, unsigned int flags,
                                            int priority) {
  return on_green(green, [&](Context& context) -> CUresult {
    if (!stream || flags != CU_STREAM_NON_BLOCKING) return CUDA_ERROR_INVALID_VALUE;
    if (const CUresult result = clamp_priority(context, &priority); result != CUDA_SUCCESS) return result;
    return create_stream(context, flags, priority, stream);
  });
}

CUDA_EXPORT CUresult cuStreamGetCtx_v2(CUstream stream, CUcontext* context, CUgreenCtx* green) {
  return guarded([&]() -> CUresult {
    Context* its = nullptr;
    if (const CUresult result = context_of_stream(stream, &its); result != CUDA_SUCCESS) return result;
    if (stream == CU_STREAM_PER_THREAD && its->root) return CUDA_ERROR_INVALID_HANDLE;
    if (context) *context = as_cuda(its->owner());
    if (green) *green = cuda::handle_from_bits<CUgreenCtx>(its->green);
    return CUDA_SUCCESS;
  });
}
CUDA_EXPORT CUresult cuStreamGetCtx_v2_ptsz(CUstream stream, CUcontext* context, CUgreenCtx* green) {
  return cuStreamGetCtx_v2(or_per_thread(stream), context, green);
}
#endif

#if CUDA_VERSION >= 12090
CUDA_EXPORT CUresult cuGreenCtxGetId(CUgreenCtx green, unsigned long long* id) {
  if (!id) return CUDA_ERROR_INVALID_VALUE;
  if (!green) {
    const CUresult result = ready();
    const Context* const context = result == CUDA_SUCCESS ? current_context() : nullptr;
    if (!context || !context->root) return result != CUDA_SUCCESS ? result : CUDA_ERROR_INVALID_CONTEXT;
    *id = context->id;
    return CUDA_SUCCESS;
  }
  return on_green(green, [&](Context& context) {
    *id = context.id;
    return CUDA_SUCCESS;
  });
}
#endif
#endif
