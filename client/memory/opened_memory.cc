// Memory of other processes that is opened at an address of this one (virtual_memory.h).
#include <algorithm>

#include "client/memory/virtual_memory.h"
#include "protocol/driver/exports.h"
#include "protocol/wire/sharing.h"

namespace gpupool::client {
namespace {

struct Opened {
  wire::SharedName name;
  Session* session;
  uint64_t memory;       // handle
  uint64_t start, size;  // of the mapping
  uint32_t times;
};

struct AllOpened {
  std::mutex mutex;
  std::map<uint64_t, Opened> by_address;
  std::atomic<size_t> count{0};
};
AllOpened& opened() {
  static AllOpened* const only = new AllOpened;
  return *only;
}

bool same(const wire::SharedName& a, const wire::SharedName& b) {
  return std::memcmp(&a, &b, sizeof a) == 0;
}

CUresult map(Session& session, uint64_t address, const Memory& memory) {
  CUresult result = rows::cuMemMap::at({&session, nullptr}, {address, memory.size, 0, memory.handle, 0});
  if (result != CUDA_SUCCESS) return result;
  CUmemAccessDesc access{memory.properties.location, CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
  access.location.id = find_device(access.location.id)->server_ordinal;
  result = rows::cuMemSetAccess::at({&session, nullptr}, {address, memory.size, &access, 1});
  // Both commands are queued; this query shows whether they succeeded.
  unsigned long long flags = 0;
  if (result == CUDA_SUCCESS)
    result = rows::cuMemGetAccess::at({&session, nullptr}, {&flags, &access.location, address});
  return result == CUDA_SUCCESS && flags != CU_MEM_ACCESS_FLAGS_PROT_READWRITE ? CUDA_ERROR_MAP_FAILED
                                                                               : result;
}

CUresult open(Session& session, const wire::SharedName& name, Opened* made) {
  CUmemGenericAllocationHandle handle = 0;
  CUresult result = import_memory(session, name, wire::kRejectOwnMemory, &handle);
  if (result != CUDA_SUCCESS) return result;
  const Memory& memory = *find_memory(handle);
  const bool inside = name.offset <= memory.size && name.size != 0 && name.size <= memory.size - name.offset;
  const auto at = inside ? session.addresses().reserve(memory.size, 0, 0) : std::nullopt;
  result = !inside ? CUDA_ERROR_INVALID_VALUE : at ? map(session, *at, memory) : CUDA_ERROR_OUT_OF_MEMORY;
  if (result == CUDA_SUCCESS) {
    *made = {name, &session, handle, *at, memory.size, 1};
    return result;
  }
  if (at) {
    (void)rows::cuMemUnmap::at({&session, nullptr}, {*at, memory.size});
    session.addresses().unreserve(*at, memory.size);
  }
  (void)rows::cuMemRelease::forward(handle);
  return result;
}

}  // namespace

namespace {

// Gives the current device access to memory opened by cuIpcOpenMemHandle, which may be on another device.
CUresult reach_from_current_device(const Opened& opened) {
  const Context* const user = current_context(nullptr);
  if (opened.name.kind != static_cast<uint32_t>(SharedKind::memory) || !user ||
      user->session != opened.session)
    return CUDA_SUCCESS;
  const CallTarget target{opened.session, nullptr};
  CUmemAccessDesc access{{CU_MEM_LOCATION_TYPE_DEVICE, user->device->server_ordinal},
                         CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
  if (find_device(find_memory(opened.memory)->properties.location.id)->server_ordinal == access.location.id)
    return CUDA_SUCCESS;
  CUresult result = rows::cuMemSetAccess::at(target, {opened.start, opened.size, &access, 1});
  unsigned long long flags = 0;
  if (result == CUDA_SUCCESS)
    result = rows::cuMemGetAccess::at(target, {&flags, &access.location, opened.start});
  return result == CUDA_SUCCESS && flags != CU_MEM_ACCESS_FLAGS_PROT_READWRITE
             ? CUDA_ERROR_PEER_ACCESS_UNSUPPORTED
             : result;
}

}  // namespace

CUresult open_shared(Session& session, const wire::SharedName& name, CUdeviceptr* address) {
  const std::lock_guard lock(opened().mutex);
  auto& all = opened().by_address;
  if (const auto known =
          std::find_if(all.begin(), all.end(), [&](const auto& one) { return same(one.second.name, name); });
      known != all.end()) {
    if (const CUresult result = reach_from_current_device(known->second); result != CUDA_SUCCESS)
      return result;
    ++known->second.times;
    *address = known->first;
    return CUDA_SUCCESS;
  }
  Opened made{};
  if (const CUresult result = open(session, name, &made); result != CUDA_SUCCESS) return result;
  *address = made.start + name.offset;
  const Context* const context = current_context(nullptr);
  Allocation about;
  about.address = *address;
  about.size = name.size;
  about.context = context ? context->owner().handle : 0;
  about.device = find_device(find_memory(made.memory)->properties.location.id);
  session.addresses().add_foreign(about);
  all[*address] = made;
  opened().count = all.size();
  return reach_from_current_device(made);
}

CUresult close_shared(SharedKind kind, CUdeviceptr address) {
  const std::lock_guard lock(opened().mutex);
  auto& all = opened().by_address;
  const auto known = all.find(address);
  if (known == all.end() || known->second.name.kind != static_cast<uint32_t>(kind))
    return CUDA_ERROR_INVALID_VALUE;
  if (--known->second.times != 0) return CUDA_SUCCESS;
  const Opened gone = known->second;
  all.erase(known);
  opened().count = all.size();
  gone.session->addresses().forget_foreign(address);
  const CUresult result = rows::cuMemUnmap::at({gone.session, nullptr}, {gone.start, gone.size});
  if (result == CUDA_SUCCESS) gone.session->addresses().unreserve(gone.start, gone.size);
  const CUresult released = rows::cuMemRelease::forward(gone.memory);
  return result == CUDA_SUCCESS ? released : result;
}

bool is_opened(SharedKind kind, CUdeviceptr address) {
  if (opened().count.load(std::memory_order_relaxed) == 0) return false;
  const std::lock_guard lock(opened().mutex);
  const auto known = opened().by_address.find(address);
  return known != opened().by_address.end() && known->second.name.kind == static_cast<uint32_t>(kind);
}

}  // namespace gpupool::client
