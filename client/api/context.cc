// Contexts: the per-thread stack and queries are answered here; commands for the server are queued.
#include <algorithm>

#include "client/graphs/capture.h"
#include "client/graphs/graph_memory.h"
#include "client/memory/compared_copies.h"
#include "client/memory/host_memory.h"
#include "client/memory/mirrors.h"
#include "client/memory/pool_memory.h"
#include "protocol/driver/export_tables.h"
#include "protocol/driver/exports.h"
#include "protocol/wire/commands.h"

using namespace gpupool;
using namespace gpupool::client;

namespace gpupool::client {

CUresult require_context(Session** session, Context** context) {
  if (const CUresult result = ready(); result != CUDA_SUCCESS) return result;
  CUresult error = CUDA_SUCCESS;
  *context = current_context(&error);
  if (!*context) return error;
  *session = (*context)->session;
  return CUDA_SUCCESS;
}

CUresult find_context(CUcontext given, Session** session, Context** context) {
  if (!given) return require_context(session, context);
  if (const CUresult result = ready(); result != CUDA_SUCCESS) return result;
  *context = handles().find_as<Context>(Kind::context, cuda::handle_bits(given));
  if (!*context) return CUDA_ERROR_INVALID_CONTEXT;
  *session = (*context)->session;
  return CUDA_SUCCESS;
}

void redirect(const Object& named, CallTarget& target) {
  if (named.session == target.session || !named.session) return;
  target.session = named.session;
  target.context = handles().find_as<Context>(Kind::context, named.context);
}

void redirect(const Device& named, CallTarget& target) {
  if (named.session == target.session) return;
  target.session = named.session;
  target.context = nullptr;
}

unsigned long long new_context_id() {
  static std::atomic<unsigned long long> next{1 << 16};  // smaller ids are primary contexts
  return next.fetch_add(1);
}

}  // namespace gpupool::client

namespace {

CUcontext as_cuda(const Context& context) {
  return cuda::handle_from_bits<CUcontext>(context.handle);
}

// Forgets the client's state of memory in a context that is destroyed or reset.
void forget_memory(const Context& context) {
  forget_pool_memory_of(context.handle);
  mirrors().forget_context(context);
  for (const uint64_t host : compared_copies().forget_context(context)) host_memory().set_device(host, 0);
}

CUresult find_primary(CUdevice ordinal, Session** session, Context** context) {
  if (const CUresult result = ready(); result != CUDA_SUCCESS) return result;
  const Device* device = find_device(ordinal);
  if (!device) return CUDA_ERROR_INVALID_DEVICE;
  *session = device->session;
  *context = device->primary;
  return CUDA_SUCCESS;
}

CUresult synchronize(Context& context) {
  const auto points = stream_order().reach_context(context.handle);
  const CUresult result = synchronize_context(context);
  if (result == CUDA_SUCCESS) after_wait(points);
  return result;
}

CUresult check_flags(unsigned flags) {
  if (flags & ~static_cast<unsigned>(CU_CTX_FLAGS_MASK)) return CUDA_ERROR_INVALID_VALUE;
  const unsigned schedule = flags & CU_CTX_SCHED_MASK;
  const bool single = schedule == 0 || schedule == CU_CTX_SCHED_SPIN || schedule == CU_CTX_SCHED_YIELD ||
                      schedule == CU_CTX_SCHED_BLOCKING_SYNC;
  return single ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUresult create_context(CUcontext* made, unsigned flags, CUdevice ordinal) {
  if (const CUresult result = ready(); result != CUDA_SUCCESS) return result;
  if (!made) return CUDA_ERROR_INVALID_VALUE;
  Device* device = find_device(ordinal);
  if (!device) return CUDA_ERROR_INVALID_DEVICE;
  if (const CUresult result = check_flags(flags); result != CUDA_SUCCESS) return result;
  auto fresh = std::make_unique<Context>();
  Context* context = fresh.get();
  context->device = device;
  context->flags = flags;
  context->id = new_context_id();
  if (!device->session->mint(Kind::context, std::move(fresh))) return CUDA_ERROR_OUT_OF_MEMORY;
  if (const CUresult result = ensure_on_server(*context); result != CUDA_SUCCESS) {
    handles().retire(context->handle);
    return result;
  }
  thread_state().contexts.push_back(context->handle);
  *made = as_cuda(*context);
  return CUDA_SUCCESS;
}

CUresult destroy_context(CUcontext given) {
  Session* session = nullptr;
  Context* context = nullptr;
  if (!given) return CUDA_ERROR_INVALID_VALUE;
  if (const CUresult result = find_context(given, &session, &context); result != CUDA_SUCCESS) return result;
  if (context->primary || context->root) return CUDA_ERROR_INVALID_CONTEXT;
  await_cross_server_work(*context);
  cuda::context_local_storage().destroy_context(given);
  uint64_t sequence = 0;
  const uint64_t handle = context->handle;
  const CUresult result =
      session->post(wire::Command::destroy_context, nullptr, wire::DestroyContext{handle}, &sequence);
  cuda::graph_memory::forget_context(handle);
  session->addresses().forget_context(handle, sequence);
  forget_memory(*context);
  auto& stack = thread_state().contexts;
  if (!stack.empty() && stack.back() == handle) stack.pop_back();
  handles().retire(handle);
  return result;
}

void set_flags(Context& context, unsigned flags) {
  const std::lock_guard lock(context.mutex);
  context.flags = flags;
}

// Also called for the last release, which resets the primary context, as CUDA documents.
CUresult reset_primary(Session& session, Context& context) {
  await_cross_server_work(context);
  bool was_active = false;
  {
    std::lock_guard lock(context.mutex);
    context.active = false;
    was_active = context.on_server.exchange(false);
    context.sticky_error = 0;
    context.epoch.fetch_add(1);
  }
  cuda::context_local_storage().destroy_context(as_cuda(context));
  if (!was_active) return CUDA_SUCCESS;
  uint64_t sequence = 0;
  const CUresult result =
      session.post(wire::Command::reset_primary_context, nullptr,
                   wire::PrimaryContext{context.handle, context.device->server_ordinal, 0}, &sequence);
  cuda::graph_memory::forget_context(context.handle);
  session.addresses().forget_context(context.handle, sequence);
  forget_memory(context);
  return result;
}

}  // namespace

CUDA_EXPORT CUresult cuDevicePrimaryCtxRetain(CUcontext* made, CUdevice device) {
  return guarded([&] {
    Session* session = nullptr;
    Context* context = nullptr;
    if (const CUresult result = find_primary(device, &session, &context); result != CUDA_SUCCESS)
      return result;
    if (!made) return CUDA_ERROR_INVALID_VALUE;
    {
      std::lock_guard lock(context->mutex);
      ++context->retains;
      context->active = true;
    }
    if (session->failed()) return Session::failure();
    const CUresult result = context->on_server ? CUDA_SUCCESS : ensure_on_server(*context);
    if (result != CUDA_SUCCESS) {
      std::lock_guard lock(context->mutex);
      context->active = --context->retains > 0;
      return result;
    }
    *made = as_cuda(*context);
    return CUDA_SUCCESS;
  });
}

CUDA_EXPORT CUresult cuDevicePrimaryCtxRelease_v2(CUdevice device) {
  return guarded([&] {
    Session* session = nullptr;
    Context* context = nullptr;
    if (const CUresult result = find_primary(device, &session, &context); result != CUDA_SUCCESS)
      return result;
    {
      std::lock_guard lock(context->mutex);
      if (context->retains == 0) return CUDA_ERROR_INVALID_CONTEXT;
      if (--context->retains > 0) return CUDA_SUCCESS;
    }
    return reset_primary(*session, *context);
  });
}

CUDA_EXPORT CUresult cuDevicePrimaryCtxReset_v2(CUdevice device) {
  return guarded([&] {
    Session* session = nullptr;
    Context* context = nullptr;
    CUresult result = find_primary(device, &session, &context);
    if (result == CUDA_SUCCESS) result = reset_primary(*session, *context);
    if (result == CUDA_SUCCESS) set_flags(*context, 0);
    return result;
  });
}

CUDA_EXPORT CUresult cuDevicePrimaryCtxSetFlags_v2(CUdevice device, unsigned int flags) {
  Session* session = nullptr;
  Context* context = nullptr;
  if (const CUresult result = find_primary(device, &session, &context); result != CUDA_SUCCESS) return result;
  if (const CUresult result = check_flags(flags); result != CUDA_SUCCESS) return result;
  set_flags(*context, flags);
  return CUDA_SUCCESS;
}

CUDA_EXPORT CUresult cuCtxCreate_v2(CUcontext* context, unsigned int flags, CUdevice device) {
  return guarded([&] { return create_context(context, flags, device); });
}

#if CUDA_VERSION >= 11040
CUDA_EXPORT CUresult cuCtxCreate_v3(CUcontext* context, CUexecAffinityParam* affinity, int count,
                                    unsigned int flags, CUdevice device) {
  if (count != 0) return CUDA_ERROR_UNSUPPORTED_EXEC_AFFINITY;
  return guarded([&] { return create_context(context, flags, device); });
}
#endif

#if CUDA_VERSION >= 12050
CUDA_EXPORT CUresult cuCtxCreate_v4(CUcontext* context, CUctxCreateParams* params, unsigned int flags,
                                    CUdevice device) {
  if (params && params->numExecAffinityParams != 0) return CUDA_ERROR_UNSUPPORTED_EXEC_AFFINITY;
  if (params && params->cigParams) return CUDA_ERROR_NOT_SUPPORTED;
  return guarded([&] { return create_context(context, flags, device); });
}
#endif

CUDA_EXPORT CUresult cuCtxDestroy_v2(CUcontext context) {
  return guarded([&] { return destroy_context(context); });
}

CUDA_EXPORT CUresult cuCtxAttach(CUcontext* context, unsigned int flags) {
  return guarded([&]() -> CUresult {
    Session* session = nullptr;
    Context* current = nullptr;
    if (const CUresult result = require_context(&session, &current); result != CUDA_SUCCESS) return result;
    if (!context || flags != 0) return CUDA_ERROR_INVALID_VALUE;
    ++current->attached;
    *context = as_cuda(*current);
    return CUDA_SUCCESS;
  });
}

// The last use is cuCtxCreate's own; a primary context has none. As documented, the context must be current.
CUDA_EXPORT CUresult cuCtxDetach(CUcontext given) {
  return guarded([&]() -> CUresult {
    Session* session = nullptr;
    Context* current = nullptr;
    if (const CUresult result = require_context(&session, &current); result != CUDA_SUCCESS) return result;
    if (given != as_cuda(*current)) return CUDA_ERROR_INVALID_CONTEXT;
    for (int uses = current->attached; uses > 0;) {
      if (current->attached.compare_exchange_weak(uses, uses - 1)) return CUDA_SUCCESS;
    }
    return destroy_context(given);
  });
}

CUDA_EXPORT CUresult cuCtxPushCurrent_v2(CUcontext given) {
  return guarded([&] {
    Session* session = nullptr;
    Context* context = nullptr;
    if (const CUresult result = ready(); result != CUDA_SUCCESS) return result;
    if (!given) return CUDA_ERROR_INVALID_VALUE;
    if (const CUresult result = find_context(given, &session, &context); result != CUDA_SUCCESS)
      return result;
    thread_state().contexts.push_back(context->handle);
    return CUDA_SUCCESS;
  });
}

CUDA_EXPORT CUresult cuCtxPopCurrent_v2(CUcontext* popped) {
  return guarded([&] {
    if (const CUresult result = ready(); result != CUDA_SUCCESS) return result;
    auto& stack = thread_state().contexts;
    if (stack.empty()) return CUDA_ERROR_INVALID_CONTEXT;
    if (popped) *popped = cuda::handle_from_bits<CUcontext>(stack.back());
    stack.pop_back();
    return CUDA_SUCCESS;
  });
}

CUDA_EXPORT CUresult cuCtxSetCurrent(CUcontext given) {
  return guarded([&] {
    Session* session = nullptr;
    Context* context = nullptr;
    if (const CUresult result = ready(); result != CUDA_SUCCESS) return result;
    auto& stack = thread_state().contexts;
    if (!given) {
      if (!stack.empty()) stack.pop_back();
      return CUDA_SUCCESS;
    }
    if (const CUresult result = find_context(given, &session, &context); result != CUDA_SUCCESS)
      return result;
    if (stack.empty())
      stack.push_back(context->handle);
    else
      stack.back() = context->handle;
    return CUDA_SUCCESS;
  });
}

CUDA_EXPORT CUresult cuCtxGetCurrent(CUcontext* context) {
  return guarded([&] {
    if (const CUresult result = ready(); result != CUDA_SUCCESS) return result;
    if (!context) return CUDA_ERROR_INVALID_VALUE;
    const auto& stack = thread_state().contexts;
    *context = stack.empty() ? nullptr : cuda::handle_from_bits<CUcontext>(stack.back());
    return CUDA_SUCCESS;
  });
}

#define FOR_CONTEXT(given)    \
  Session* session = nullptr; \
  Context* context = nullptr; \
  if (const CUresult result = find_context(given, &session, &context); result != CUDA_SUCCESS) return result

CUDA_EXPORT CUresult cuCtxSynchronize(void) {
  return guarded([&]() -> CUresult {
    FOR_CONTEXT(nullptr);
    if (const CUresult refused = capture::refuse_context(*context); refused != CUDA_SUCCESS) return refused;
    return synchronize(*context);
  });
}

#if CUDA_VERSION >= 12000
CUDA_EXPORT CUresult cuCtxSetFlags(unsigned int flags) {
  FOR_CONTEXT(nullptr);
  if (const CUresult result = check_flags(flags); result != CUDA_SUCCESS) return result;
  context->flags = flags;
  return CUDA_SUCCESS;
}
#endif

#if CUDA_VERSION >= 13000
CUDA_EXPORT CUresult cuCtxSynchronize_v2(CUcontext given) {
  return guarded([&]() -> CUresult {
    FOR_CONTEXT(given);
    if (const CUresult refused = capture::refuse_context(*context); refused != CUDA_SUCCESS) return refused;
    return synchronize(*context);
  });
}
#endif
