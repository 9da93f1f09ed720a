#include "server/worker/handlers/memory_guards.h"

#include <algorithm>
#include <vector>

#include "server/worker/session/session.h"

namespace gpupool::worker::guards {
namespace {

#define REAL(name) t_session->guarded.name

constexpr int kFabricType = 8;  // CU_MEM_HANDLE_TYPE_FABRIC, CUDA 12.3

// Finds the session's context by the driver's handle; returns null if there is none.
ContextState* find_session_context(CUcontext object) {
  for (const auto& [handle, context] : t_session->contexts.all()) {
    if (context->object == object) return context.get();
  }
  return nullptr;
}

bool plain_properties(const CUmemAllocationProp* properties) {
  return properties && properties->type == CU_MEM_ALLOCATION_TYPE_PINNED &&
         (properties->requestedHandleTypes & ~(CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR | kFabricType)) ==
             0 &&
         properties->location.type == CU_MEM_LOCATION_TYPE_DEVICE && !properties->win32HandleMetaData;
}

// Replaces the session's device number by the library's.
CUresult find_driver_device(CUmemLocation& location) {
  if (location.type != CU_MEM_LOCATION_TYPE_DEVICE) return CUDA_SUCCESS;
  const auto device = t_session->start.visible.find(location.id);
  if (!device) return CUDA_ERROR_INVALID_DEVICE;
  location.id = *device;
  return CUDA_SUCCESS;
}

}  // namespace

CUresult create_memory(CUmemGenericAllocationHandle* handle, size_t size,
                       const CUmemAllocationProp* properties, unsigned long long flags) {
  if (!plain_properties(properties)) return CUDA_ERROR_NOT_SUPPORTED;
  CUmemAllocationProp found = *properties;
  if (const CUresult result = find_driver_device(found.location); result != CUDA_SUCCESS) return result;
  return t_session->virtual_memory.create(handle, size, found, flags);
}

CUresult release_memory(CUmemGenericAllocationHandle handle) {
  return t_session->virtual_memory.release(handle);
}

// Reports the memory of the device, but no more than the tenant's quota.
CUresult memory_info(size_t* free, size_t* total) {
  if (!free || !total) return CUDA_ERROR_INVALID_VALUE;
  t_session->memory.settle();
  const ContextState* const context = t_session->contexts.current();
  if (context) t_session->reclaimer.before_report(context->device);
  const CUresult result = REAL(cuMemGetInfo_v2)(free, total);
  if (result != CUDA_SUCCESS || !context) return result;
  if (const auto room = t_session->ledger.room(context->device)) {
    // With oversubscription, other sessions' memory can be moved to make room.
    const uint64_t used = t_session->ledger.used(context->device);
    if (t_session->start.oversubscribes) *free = *total > used ? *total - used : 0;
    *free = std::min<uint64_t>(*free, room->free);
    *total = std::min<uint64_t>(*total, room->limit);
  }
  return result;
}

CUresult set_limit(CUlimit limit, size_t value) {
  return t_session->memory_charges.set_limit(limit, value);
}

CUresult memory_granularity(size_t* size, const CUmemAllocationProp* properties,
                            CUmemAllocationGranularity_flags option) {
  if (!plain_properties(properties)) return CUDA_ERROR_NOT_SUPPORTED;
  CUmemAllocationProp found = *properties;
  if (const CUresult result = find_driver_device(found.location); result != CUDA_SUCCESS) return result;
  found.requestedHandleTypes = CU_MEM_HANDLE_TYPE_NONE;
  return REAL(cuMemGetAllocationGranularity)(size, &found, option);
}

CUresult map_memory(CUdeviceptr address, size_t size, size_t offset, CUmemGenericAllocationHandle handle,
                    unsigned long long flags) {
  return t_session->virtual_memory.map(address, size, offset, handle, flags);
}

CUresult unmap_memory(CUdeviceptr address, size_t size) {
  return t_session->virtual_memory.unmap(address, size);
}

CUresult set_memory_access(CUdeviceptr address, size_t size, const CUmemAccessDesc* access, size_t count) {
  if (!access) return CUDA_ERROR_INVALID_VALUE;
  std::vector<CUmemAccessDesc> found(access, access + count);
  for (CUmemAccessDesc& one : found) {
    if (const CUresult result = find_driver_device(one.location); result != CUDA_SUCCESS) return result;
  }
  const CUresult result = t_session->virtual_memory.set_access(address, size, found);
  if (result == CUDA_SUCCESS) t_session->memory.note_access(address, size, found);
  return result;
}

CUresult get_memory_access(unsigned long long* flags, const CUmemLocation* location, CUdeviceptr address) {
  if (!location) return CUDA_ERROR_INVALID_VALUE;
  CUmemLocation found = *location;
  if (const CUresult result = find_driver_device(found); result != CUDA_SUCCESS) return result;
  return REAL(cuMemGetAccess)(flags, &found, address);
}

CUresult enable_peer(CUcontext peer, unsigned flags) {
  ContextState* const accessed = find_session_context(peer);
  ContextState* const accessing = t_session->contexts.current();
  if (!accessing || !accessed) return CUDA_ERROR_INVALID_CONTEXT;
  CUresult result = REAL(cuCtxEnablePeerAccess)(peer, flags);
  if (result != CUDA_SUCCESS) return result;
  result = t_session->memory.allow_access(accessing->owner(), accessed->owner());
  if (result != CUDA_SUCCESS && REAL(cuCtxDisablePeerAccess)) (void)REAL(cuCtxDisablePeerAccess)(peer);
  return result;
}

CUresult disable_peer(CUcontext peer) {
  if (!peer) return CUDA_ERROR_INVALID_CONTEXT;
  const CUresult result = REAL(cuCtxDisablePeerAccess)(peer);
  ContextState* const accessed = find_session_context(peer);
  ContextState* const accessing = t_session->contexts.current();
  if (result == CUDA_SUCCESS && accessing && accessed)
    t_session->memory.forbid_access(accessing->owner(), accessed->owner());
  return result;
}

}  // namespace gpupool::worker::guards
