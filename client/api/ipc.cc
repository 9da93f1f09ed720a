// cuIpc...: device memory and events of other processes of the tenant. The handle is a name (shared_name.h);
// the workers of the two processes pass the memory on.
#include <mutex>
#include <unordered_set>

#include "client/graphs/capture.h"
#include "client/memory/virtual_memory.h"
#include "client/session/replies.h"
#include "client/streams/interprocess_events.h"
#include "client/streams/stream_order.h"
#include "protocol/driver/exports.h"
#include "protocol/wire/sharing.h"

using namespace gpupool;
using namespace gpupool::client;

namespace gpupool::client::interprocess_events {
namespace {

struct Events {
  std::mutex mutex;
  std::unordered_set<CUevent> all;
  std::atomic<size_t> count{0};
};
Events& events() {
  static Events* const only = new Events;
  return *only;
}

}  // namespace

void add(CUevent event) {
  stream_order().invalidate_event(cuda::handle_bits(event));  // another process may record it
  const std::lock_guard lock(events().mutex);
  events().all.insert(event);
  events().count = events().all.size();
}

void remove(CUevent event) {
  if (events().count.load(std::memory_order_relaxed) == 0) return;
  const std::lock_guard lock(events().mutex);
  events().all.erase(event);
  events().count = events().all.size();
}

bool contains(CUevent event) {
  if (events().count.load(std::memory_order_relaxed) == 0) return false;
  const std::lock_guard lock(events().mutex);
  return events().all.contains(event);
}

}  // namespace gpupool::client::interprocess_events

CUDA_EXPORT CUresult cuIpcGetMemHandle(CUipcMemHandle* handle, CUdeviceptr address) {
  return guarded([&]() -> CUresult {
    Session* session = nullptr;
    Context* context = nullptr;
    if (const CUresult result = require_context(&session, &context); result != CUDA_SUCCESS) return result;
    if (!handle) return CUDA_ERROR_INVALID_VALUE;
    Session* const owner = session_of(address, session);
    const auto about = owner ? owner->addresses().find(address) : std::nullopt;
    if (!about || about->foreign || about->managed || about->origin != Allocation::Origin::plain)
      return CUDA_ERROR_INVALID_VALUE;
    wire::SharedName name{};
    if (const CUresult result = name_of_allocation(*owner, *about, SharedKind::memory, &name);
        result != CUDA_SUCCESS)
      return result;
    write_name(name, handle);
    return CUDA_SUCCESS;
  });
}

CUDA_EXPORT CUresult cuIpcOpenMemHandle_v2(CUdeviceptr* address, CUipcMemHandle handle, unsigned int flags) {
  return guarded([&]() -> CUresult {
    Session* session = nullptr;
    Context* context = nullptr;
    if (const CUresult result = require_context(&session, &context); result != CUDA_SUCCESS) return result;
    if (!address || flags != CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS) return CUDA_ERROR_INVALID_VALUE;
    wire::SharedName name{};
    if (const CUresult result = read_name(&handle, SharedKind::memory, &name, &session);
        result != CUDA_SUCCESS)
      return result;
    return open_shared(*session, name, address);
  });
}

CUDA_EXPORT CUresult cuIpcCloseMemHandle(CUdeviceptr address) {
  return guarded([&]() -> CUresult {
    Session* session = nullptr;
    Context* context = nullptr;
    if (const CUresult result = require_context(&session, &context); result != CUDA_SUCCESS) return result;
    if (!is_opened(SharedKind::memory, address)) return CUDA_ERROR_INVALID_VALUE;
    if (const CUresult result = cuCtxSynchronize(); result != CUDA_SUCCESS) return result;
    return close_shared(SharedKind::memory, address);
  });
}

CUDA_EXPORT CUresult cuIpcGetEventHandle(CUipcEventHandle* handle, CUevent event) {
  return guarded([&]() -> CUresult {
    if (const CUresult result = ready(); result != CUDA_SUCCESS) return result;
    if (!handle) return CUDA_ERROR_INVALID_VALUE;
    const Object* const known = handles().find(Kind::event, cuda::handle_bits(event));
    if (!known || !interprocess_events::contains(event)) return CUDA_ERROR_INVALID_HANDLE;
    auto* const context = handles().find_as<Context>(Kind::context, known->context);
    if (!context) return CUDA_ERROR_CONTEXT_IS_DESTROYED;
    wire::Buffer reply;
    const CUresult result = known->session->call(wire::Command::export_event, context,
                                                 wire::ExportEvent{cuda::handle_bits(event)}, reply);
    if (result != CUDA_SUCCESS) return result;
    wire::SharedName name;
    if (!read_shared_name(reply, &name)) return Session::failure();
    name.kind = static_cast<uint32_t>(SharedKind::event);
    write_name(name, handle);
    return CUDA_SUCCESS;
  });
}

CUDA_EXPORT CUresult cuIpcOpenEventHandle(CUevent* event, CUipcEventHandle handle) {
  return guarded([&]() -> CUresult {
    Session* session = nullptr;
    Context* context = nullptr;
    if (const CUresult result = require_context(&session, &context); result != CUDA_SUCCESS) return result;
    if (!event) return CUDA_ERROR_INVALID_VALUE;
    wire::SharedName name{};
    Session* owner = nullptr;
    if (const CUresult result = read_name(&handle, SharedKind::event, &name, &owner); result != CUDA_SUCCESS)
      return result;
    // Event of another server than the current context's.
    if (owner != session) return CUDA_ERROR_NOT_SUPPORTED;
    auto object = std::make_unique<Object>();
    object->context = context->owner().handle;
    const uint64_t minted = session->mint(Kind::event, std::move(object));
    if (minted == 0) return CUDA_ERROR_OUT_OF_MEMORY;
    wire::Buffer reply;
    const CUresult result =
        session->call(wire::Command::import_event, context, wire::ImportEvent{minted, name}, reply);
    if (result != CUDA_SUCCESS) {
      handles().retire(minted);
      return result;
    }
    *event = cuda::handle_from_bits<CUevent>(minted);
    interprocess_events::add(*event);
    return CUDA_SUCCESS;
  });
}
