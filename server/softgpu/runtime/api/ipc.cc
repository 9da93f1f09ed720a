// cuIpc...: memory and events of other processes on the same device.
//
// A memory handle contains the owner's process id and its descriptor there, so both processes must belong to
// one user and see each other in /proc. For the pool's workers that need not be so; they share memory by
// descriptors (vmm.cc). Events are in the device's shared file.
#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <map>

#include "server/softgpu/runtime/api/call.h"

using namespace gpupool::softgpu;
using namespace gpupool::softgpu::api;

namespace {

constexpr uint32_t kMemory = 0x4d454d01, kEvent = 0x45564e01;

struct Handle {
  uint32_t magic;
  int32_t process;
  uint64_t device;  // SharedDevice::key()
  union {
    struct {
      uint64_t id;      // MemoryLabel::id
      uint64_t offset;  // of the allocation in the memory
      uint64_t size;
      int32_t descriptor;
    } memory;
    SharedEventName event;
  };
};
static_assert(sizeof(Handle) <= sizeof(CUipcMemHandle) && sizeof(Handle) <= sizeof(CUipcEventHandle));

template <class Bytes>
void put(const Handle& handle, Bytes* bytes) {
  std::memset(bytes, 0, sizeof *bytes);
  std::memcpy(bytes, &handle, sizeof handle);
}
template <class Bytes>
Handle get(const Bytes& bytes) {
  Handle handle;
  std::memcpy(&handle, &bytes, sizeof handle);
  return handle;
}

Device* device_of(uint64_t key) {
  for (const auto& device : runtime().devices()) {
    if (device->shared().key() == key) return device.get();
  }
  return nullptr;
}

// Opened memory. Opening it again returns the same address.
struct Opened {
  uint64_t address;
  uint32_t times;
};
struct AllOpened {
  std::mutex mutex;
  std::map<std::pair<uint64_t, uint64_t>, Opened> by_memory;  // id, offset
};
AllOpened& opened() {
  static auto* const only = new AllOpened;
  return *only;
}

CUresult open_memory(Context& context, const Handle& handle, uint64_t* address) {
  Device* const device = device_of(handle.device);
  if (device == nullptr) return CUDA_ERROR_INVALID_VALUE;
  const std::string path =
      "/proc/" + std::to_string(handle.process) + "/fd/" + std::to_string(handle.memory.descriptor);
  const int descriptor = ::open(path.c_str(), O_RDWR | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
  if (descriptor < 0) return CUDA_ERROR_INVALID_VALUE;
  const auto label = read_label(descriptor);
  const bool same = label && label->id == handle.memory.id && handle.memory.offset <= label->size &&
                    handle.memory.size <= label->size - handle.memory.offset;
  bool refused = false;
  const auto memory = same ? device->shared().import_memory(descriptor, &refused) : nullptr;
  ::close(descriptor);
  if (!memory) return refused ? CUDA_ERROR_OUT_OF_MEMORY : CUDA_ERROR_INVALID_VALUE;
  const uint64_t size = round_up(memory->size(), page_bytes());
  const auto start = allocate_addresses(size, kGranule, 0);
  if (!start) return CUDA_ERROR_OUT_OF_MEMORY;
  if (!map_memory(memory, 0, *start, size)) {
    free_addresses(*start, size);
    return CUDA_ERROR_MAP_FAILED;
  }
  MemoryRange range;
  range.address = *start + handle.memory.offset;
  range.size = handle.memory.size;
  range.kind = MemoryKind::opened;
  range.device = device->index();
  range.context = context.root().handle();
  range.offset = handle.memory.offset;
  if (!runtime().memory().add(range)) {
    runtime().release(range);
    return CUDA_ERROR_UNKNOWN;
  }
  *address = range.address;
  return CUDA_SUCCESS;
}

}  // namespace

CUDA_EXPORT CUresult cuIpcGetMemHandle(CUipcMemHandle* to, CUdeviceptr address) {
  return call_in_context([&](Context&) {
    if (to == nullptr) return CUDA_ERROR_INVALID_VALUE;
    const auto range = runtime().memory().find(address);
    if (!range || range->kind != MemoryKind::device) return CUDA_ERROR_INVALID_VALUE;
    uint64_t offset = 0;
    const auto memory = memory_at(range->address, &offset);
    if (!memory) return CUDA_ERROR_INVALID_VALUE;
    SharedDevice& device = runtime().device(range->device)->shared();
    int kept = -1;
    const int descriptor = device.export_memory(memory, 0, &kept);
    const auto label = descriptor < 0 ? std::nullopt : read_label(descriptor);
    if (descriptor >= 0) ::close(descriptor);
    if (!label) return CUDA_ERROR_OUT_OF_MEMORY;
    Handle handle{kMemory, ::getpid(), device.key(), {}};
    handle.memory = {label->id, offset, range->size, kept};
    put(handle, to);
    return CUDA_SUCCESS;
  });
}

CUDA_EXPORT CUresult cuIpcOpenMemHandle_v2(CUdeviceptr* address, CUipcMemHandle bytes, unsigned int flags) {
  return call_in_context([&](Context& context) {
    if (address == nullptr || flags != CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS) return CUDA_ERROR_INVALID_VALUE;
    const Handle handle = get(bytes);
    if (handle.magic != kMemory) return CUDA_ERROR_INVALID_VALUE;
    if (handle.process == ::getpid()) return CUDA_ERROR_INVALID_CONTEXT;
    std::lock_guard lock(opened().mutex);
    const std::pair key(handle.memory.id, handle.memory.offset);
    if (const auto known = opened().by_memory.find(key); known != opened().by_memory.end()) {
      if (const auto range = runtime().memory().find(known->second.address);
          range && range->kind == MemoryKind::opened) {
        ++known->second.times;
        *address = known->second.address;
        return CUDA_SUCCESS;
      }
      opened().by_memory.erase(known);  // freed with its context
    }
    uint64_t at = 0;
    const CUresult result = open_memory(context, handle, &at);
    if (result != CUDA_SUCCESS) return result;
    opened().by_memory[key] = {at, 1};
    *address = at;
    return CUDA_SUCCESS;
  });
}

CUDA_EXPORT CUresult cuIpcCloseMemHandle(CUdeviceptr address) {
  return call_in_context([&](Context& context) {
    std::lock_guard lock(opened().mutex);
    auto& all = opened().by_memory;
    const auto known =
        std::find_if(all.begin(), all.end(), [&](const auto& one) { return one.second.address == address; });
    if (known == all.end()) return CUDA_ERROR_INVALID_VALUE;
    if (--known->second.times != 0) return CUDA_SUCCESS;
    all.erase(known);
    context.synchronize();
    const auto range = runtime().memory().take(
        address, [](const MemoryRange& one) { return one.kind == MemoryKind::opened; });
    if (!range) return CUDA_ERROR_INVALID_VALUE;
    runtime().release(*range);
    return context.error();
  });
}

CUDA_EXPORT CUresult cuIpcGetEventHandle(CUipcEventHandle* to, CUevent event_handle) {
  return call([&] {
    const Ref<Event> event = find<Event>(event_handle);
    if (to == nullptr) return CUDA_ERROR_INVALID_VALUE;
    if (!event || !event->shared()) return CUDA_ERROR_INVALID_HANDLE;
    if (const CUresult result = event->context().check(); result != CUDA_SUCCESS) return result;
    Handle handle{kEvent, ::getpid(), event->context().device().shared().key(), {}};
    handle.event = event->shared()->name();
    put(handle, to);
    return CUDA_SUCCESS;
  });
}

CUDA_EXPORT CUresult cuIpcOpenEventHandle(CUevent* event, CUipcEventHandle bytes) {
  return call_in_context([&](Context& context) {
    if (event == nullptr) return CUDA_ERROR_INVALID_VALUE;
    const Handle handle = get(bytes);
    if (handle.magic != kEvent) return CUDA_ERROR_INVALID_VALUE;
    if (handle.process == ::getpid()) return CUDA_ERROR_INVALID_CONTEXT;
    Device* const device = device_of(handle.device);  // may be a peer of the context's device
    if (device == nullptr) return CUDA_ERROR_INVALID_VALUE;
    auto shared = device->shared().open_event(handle.event);
    if (!shared) return CUDA_ERROR_INVALID_VALUE;
    return context.adopt_event(CU_EVENT_INTERPROCESS | CU_EVENT_DISABLE_TIMING, std::move(shared), event);
  });
}
