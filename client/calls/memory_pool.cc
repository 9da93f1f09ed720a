// Memory pools. Stream-ordered allocations come from the session's address space like all others, so a pool is a name with
// attributes; nothing here travels.
#include "client/memory_pool.h"

#include <algorithm>

#include "protocol/cuda/exports.h"

using namespace gpupool;
using namespace gpupool::client;

namespace {

// The default pool of each device, made at first use, and the one that is current.
struct Pools {
  std::mutex mutex;
  std::map<int, uint64_t> by_default;
  std::map<int, uint64_t> current;
};
Pools& pools() {
  static Pools* const only = new Pools;
  return *only;
}

uint64_t make_pool(const Device& device, int handle_types = 0, uint64_t max_size = 0) {
  auto pool = std::make_unique<Pool>();
  pool->max_size = max_size;
  pool->device = device.ordinal;
  pool->handle_types = handle_types;
  return device.session->mint(Kind::memory_pool, std::move(pool));
}

CUresult default_pool(int ordinal, uint64_t* handle) {
  const Device* device = find_device(ordinal);
  if (!device) return CUDA_ERROR_INVALID_DEVICE;
  std::lock_guard lock(pools().mutex);
  uint64_t& pool = pools().by_default[ordinal];
  if (pool == 0) pool = make_pool(*device);
  *handle = pool;
  return pool ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

bool is_access(CUmemAccess_flags flags) {
  return flags == CU_MEM_ACCESS_FLAGS_PROT_NONE || flags == CU_MEM_ACCESS_FLAGS_PROT_READ || flags == CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
}

CUresult find(CUmemoryPool given, Pool** pool) {
  if (const CUresult result = ready(); result != CUDA_SUCCESS) return result;
  *pool = handles().find_as<Pool>(Kind::memory_pool, cuda::handle_bits(given));
  return *pool ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

}  // namespace

void Pool::count(int64_t bytes) {
  std::lock_guard lock(mutex);
  count_locked(bytes);
}

void Pool::count_locked(int64_t bytes) {
  used += static_cast<uint64_t>(bytes);
  used_high = std::max(used_high, used);
  reserved_high = std::max(reserved_high, reserved(used));
}

bool Pool::count_within_limit(uint64_t bytes) {
  std::lock_guard lock(mutex);
  if (max_size != 0 && (bytes > max_size || used > max_size - bytes)) return false;
  count_locked(static_cast<int64_t>(bytes));
  return true;
}

Pool* gpupool::client::current_pool(const Device& device) {
  {
    std::lock_guard lock(pools().mutex);
    const auto current = pools().current.find(device.ordinal);
    auto* const pool = current == pools().current.end() ? nullptr : handles().find_as<Pool>(Kind::memory_pool, current->second);
    if (pool) return pool;
  }
  uint64_t handle = 0;
  return default_pool(device.ordinal, &handle) == CUDA_SUCCESS ? handles().find_as<Pool>(Kind::memory_pool, handle) : nullptr;
}

void gpupool::client::count_in_pool(uint64_t pool, int64_t bytes) {
  if (auto* const counts = pool ? handles().find_as<Pool>(Kind::memory_pool, pool) : nullptr) counts->count(bytes);
}

CUDA_EXPORT CUresult cuDeviceGetDefaultMemPool(CUmemoryPool* pool, CUdevice device) {
  return guarded([&]() -> CUresult {
    if (const CUresult result = ready(); result != CUDA_SUCCESS) return result;
    if (!pool) return CUDA_ERROR_INVALID_VALUE;
    uint64_t handle = 0;
    const CUresult result = default_pool(device, &handle);
    if (result == CUDA_SUCCESS) *pool = cuda::handle_from_bits<CUmemoryPool>(handle);
    return result;
  });
}

CUDA_EXPORT CUresult cuDeviceGetMemPool(CUmemoryPool* pool, CUdevice device) {
  return guarded([&]() -> CUresult {
    if (const CUresult result = ready(); result != CUDA_SUCCESS) return result;
    if (!pool) return CUDA_ERROR_INVALID_VALUE;
    {
      std::lock_guard lock(pools().mutex);
      const auto current = pools().current.find(device);
      if (current != pools().current.end() && handles().find(Kind::memory_pool, current->second)) {
        *pool = cuda::handle_from_bits<CUmemoryPool>(current->second);
        return CUDA_SUCCESS;
      }
    }
    return cuDeviceGetDefaultMemPool(pool, device);
  });
}

CUDA_EXPORT CUresult cuDeviceSetMemPool(CUdevice device, CUmemoryPool given) {
  return guarded([&]() -> CUresult {
    Pool* pool = nullptr;
    if (const CUresult result = find(given, &pool); result != CUDA_SUCCESS) return result;
    if (!find_device(device)) return CUDA_ERROR_INVALID_DEVICE;
    if (pool->device != device || pool->imported_from != 0) return CUDA_ERROR_INVALID_VALUE;
    std::lock_guard lock(pools().mutex);
    pools().current[device] = pool->handle;
    return CUDA_SUCCESS;
  });
}

CUDA_EXPORT CUresult cuMemPoolCreate(CUmemoryPool* pool, const CUmemPoolProps* properties) {
  return guarded([&]() -> CUresult {
    if (const CUresult result = ready(); result != CUDA_SUCCESS) return result;
    if (!pool || !properties) return CUDA_ERROR_INVALID_VALUE;
    if (properties->allocType != CU_MEM_ALLOCATION_TYPE_PINNED) return CUDA_ERROR_INVALID_VALUE;
    if ((properties->handleTypes & ~kShareableHandleTypes) != 0) return CUDA_ERROR_NOT_SUPPORTED;
    if (properties->location.type != CU_MEM_LOCATION_TYPE_DEVICE) return CUDA_ERROR_NOT_SUPPORTED;
    const Device* device = find_device(properties->location.id);
    if (!device) return CUDA_ERROR_INVALID_DEVICE;
    const auto shares = device->attributes.find(CU_DEVICE_ATTRIBUTE_MEMPOOL_SUPPORTED_HANDLE_TYPES);
    const int offered = shares == device->attributes.end() ? 0 : shares->second;
    if ((properties->handleTypes & ~offered) != 0) return CUDA_ERROR_NOT_SUPPORTED;
#if CUDA_VERSION >= 12030
    const uint64_t max_size = properties->maxSize;
#else
    const uint64_t max_size = 0;
#endif
    const uint64_t handle = make_pool(*device, properties->handleTypes, max_size);
    if (handle == 0) return CUDA_ERROR_OUT_OF_MEMORY;
    *pool = cuda::handle_from_bits<CUmemoryPool>(handle);
    return CUDA_SUCCESS;
  });
}

CUDA_EXPORT CUresult cuMemPoolDestroy(CUmemoryPool given) {
  return guarded([&]() -> CUresult {
    Pool* pool = nullptr;
    if (const CUresult result = find(given, &pool); result != CUDA_SUCCESS) return result;
    {
      std::lock_guard lock(pools().mutex);
      const auto standard = pools().by_default.find(pool->device);
      if (standard != pools().by_default.end() && standard->second == pool->handle) return CUDA_ERROR_INVALID_VALUE;
    }
    handles().retire(pool->handle);
    return CUDA_SUCCESS;
  });
}

CUDA_EXPORT CUresult cuMemPoolSetAttribute(CUmemoryPool given, CUmemPool_attribute attribute, void* value) {
  Pool* pool = nullptr;
  if (const CUresult result = find(given, &pool); result != CUDA_SUCCESS) return result;
  if (!value) return CUDA_ERROR_INVALID_VALUE;
  std::lock_guard lock(pool->mutex);
  switch (attribute) {
    case CU_MEMPOOL_ATTR_RELEASE_THRESHOLD:
      pool->release_threshold = *static_cast<cuuint64_t*>(value);
      return CUDA_SUCCESS;
    case CU_MEMPOOL_ATTR_REUSE_FOLLOW_EVENT_DEPENDENCIES:
      pool->reuse_follow_event = *static_cast<int*>(value);
      return CUDA_SUCCESS;
    case CU_MEMPOOL_ATTR_REUSE_ALLOW_OPPORTUNISTIC:
      pool->reuse_opportunistic = *static_cast<int*>(value);
      return CUDA_SUCCESS;
    case CU_MEMPOOL_ATTR_REUSE_ALLOW_INTERNAL_DEPENDENCIES:
      pool->reuse_internal = *static_cast<int*>(value);
      return CUDA_SUCCESS;
    case CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH:  // high-water marks may only be reset
      if (*static_cast<cuuint64_t*>(value) != 0) return CUDA_ERROR_INVALID_VALUE;
      pool->reserved_high = Pool::reserved(pool->used);
      return CUDA_SUCCESS;
    case CU_MEMPOOL_ATTR_USED_MEM_HIGH:
      if (*static_cast<cuuint64_t*>(value) != 0) return CUDA_ERROR_INVALID_VALUE;
      pool->used_high = pool->used;
      return CUDA_SUCCESS;
    default:
      return CUDA_ERROR_INVALID_VALUE;
  }
}

CUDA_EXPORT CUresult cuMemPoolGetAttribute(CUmemoryPool given, CUmemPool_attribute attribute, void* value) {
  Pool* pool = nullptr;
  if (const CUresult result = find(given, &pool); result != CUDA_SUCCESS) return result;
  if (!value) return CUDA_ERROR_INVALID_VALUE;
  std::lock_guard lock(pool->mutex);
  switch (attribute) {
    case CU_MEMPOOL_ATTR_RELEASE_THRESHOLD:
      *static_cast<cuuint64_t*>(value) = pool->release_threshold;
      return CUDA_SUCCESS;
    case CU_MEMPOOL_ATTR_REUSE_FOLLOW_EVENT_DEPENDENCIES:
      *static_cast<int*>(value) = pool->reuse_follow_event;
      return CUDA_SUCCESS;
    case CU_MEMPOOL_ATTR_REUSE_ALLOW_OPPORTUNISTIC:
      *static_cast<int*>(value) = pool->reuse_opportunistic;
      return CUDA_SUCCESS;
    case CU_MEMPOOL_ATTR_REUSE_ALLOW_INTERNAL_DEPENDENCIES:
      *static_cast<int*>(value) = pool->reuse_internal;
      return CUDA_SUCCESS;
    case CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT:
      *static_cast<cuuint64_t*>(value) = Pool::reserved(pool->used);
      return CUDA_SUCCESS;
    case CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH:
      *static_cast<cuuint64_t*>(value) = pool->reserved_high;
      return CUDA_SUCCESS;
    case CU_MEMPOOL_ATTR_USED_MEM_CURRENT:
      *static_cast<cuuint64_t*>(value) = pool->used;
      return CUDA_SUCCESS;
    case CU_MEMPOOL_ATTR_USED_MEM_HIGH:
      *static_cast<cuuint64_t*>(value) = pool->used_high;
      return CUDA_SUCCESS;
    default:
      return CUDA_ERROR_INVALID_VALUE;
  }
}

CUDA_EXPORT CUresult cuMemPoolSetAccess(CUmemoryPool given, const CUmemAccessDesc* map, size_t count) {
  Pool* pool = nullptr;
  if (const CUresult result = find(given, &pool); result != CUDA_SUCCESS) return result;
  if (!map && count != 0) return CUDA_ERROR_INVALID_VALUE;
  const Device* const own = find_device(pool->device);
  for (size_t i = 0; i < count; ++i) {
    const auto& [place, flags] = map[i];
    if (place.type != CU_MEM_LOCATION_TYPE_DEVICE || !is_access(flags)) return CUDA_ERROR_INVALID_VALUE;
    const Device* const device = find_device(place.id);
    if (!device) return CUDA_ERROR_INVALID_DEVICE;
    // A device cannot be shut out of its own pool. The documentation names no error; NVIDIA's driver is believed to give this one.
    if (device == own && flags != CU_MEM_ACCESS_FLAGS_PROT_READWRITE) return CUDA_ERROR_INVALID_DEVICE;
    if (device->session != own->session && flags != CU_MEM_ACCESS_FLAGS_PROT_NONE) return CUDA_ERROR_PEER_ACCESS_UNSUPPORTED;
  }
  const std::lock_guard lock(pool->mutex);
  for (size_t i = 0; i < count; ++i) pool->access[map[i].location.id] = map[i].flags;
  return CUDA_SUCCESS;
}

CUDA_EXPORT CUresult cuMemPoolGetAccess(CUmemAccess_flags* flags, CUmemoryPool given, CUmemLocation* location) {
  Pool* pool = nullptr;
  if (const CUresult result = find(given, &pool); result != CUDA_SUCCESS) return result;
  if (!flags || !location || location->type != CU_MEM_LOCATION_TYPE_DEVICE) return CUDA_ERROR_INVALID_VALUE;
  if (!find_device(location->id)) return CUDA_ERROR_INVALID_DEVICE;
  const std::lock_guard lock(pool->mutex);
  const auto found = pool->access.find(location->id);
  const auto otherwise = location->id == pool->device ? CU_MEM_ACCESS_FLAGS_PROT_READWRITE : CU_MEM_ACCESS_FLAGS_PROT_NONE;
  *flags = found == pool->access.end() ? otherwise : found->second;
  return CUDA_SUCCESS;
}

// Freed memory goes back to the device at once: there is nothing to trim.
CUDA_EXPORT CUresult cuMemPoolTrimTo(CUmemoryPool given, size_t) {
  Pool* pool = nullptr;
  return find(given, &pool);
}

CUDA_EXPORT CUresult cuMemAllocFromPoolAsync(CUdeviceptr* address, size_t bytes, CUmemoryPool given, CUstream stream) {
  Pool* pool = nullptr;
  if (const CUresult result = find(given, &pool); result != CUDA_SUCCESS) return result;
  return pool->imported_from == 0 ? allocate_from(*pool, address, bytes, stream) : CUDA_ERROR_INVALID_VALUE;
}
CUDA_EXPORT CUresult cuMemAllocFromPoolAsync_ptsz(CUdeviceptr* address, size_t bytes, CUmemoryPool pool, CUstream stream) {
  return cuMemAllocFromPoolAsync(address, bytes, pool, stream ? stream : CU_STREAM_PER_THREAD);
}
