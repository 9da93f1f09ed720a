// Memory pools and their attributes, kept by the client.
#include "client/memory/memory_pool.h"

#include "client/streams/stream_marks.h"
#include "protocol/driver/exports.h"

using namespace gpupool;
using namespace gpupool::client;

namespace {

// Each device's default pool, created at first use, and its current pool.
struct Pools {
  std::mutex mutex;
  std::map<int, uint64_t> by_default;
  std::map<int, uint64_t> current;
};
Pools& pools() {
  static Pools* const only = new Pools;
  return *only;
}

CUresult default_pool(int ordinal, uint64_t* handle) {
  Device* const device = find_device(ordinal);
  if (!device) return CUDA_ERROR_INVALID_DEVICE;
  std::lock_guard lock(pools().mutex);
  uint64_t& pool = pools().by_default[ordinal];
  if (pool == 0) {
    if (const Pool* const made = make_pool(*device, 0, 0)) pool = made->handle;
  }
  *handle = pool;
  return pool ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

bool is_access(CUmemAccess_flags flags) {
  return flags == CU_MEM_ACCESS_FLAGS_PROT_NONE || flags == CU_MEM_ACCESS_FLAGS_PROT_READ ||
         flags == CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
}

CUresult find(CUmemoryPool given, Pool** pool) {
  if (const CUresult result = ready(); result != CUDA_SUCCESS) return result;
  *pool = handles().find_as<Pool>(Kind::memory_pool, cuda::handle_bits(given));
  return *pool ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

}  // namespace

Pool* gpupool::client::make_pool(Device& device, int handle_types, uint64_t max_size,
                                 uint64_t imported_from) {
  auto made = std::make_unique<Pool>();
  Pool* const pool = made.get();
  pool->device = device.ordinal;
  pool->handle_types = handle_types;
  pool->imported_from = imported_from;
  pool->memory = PoolMemory::create(device, max_size);
  return device.session->mint(Kind::memory_pool, std::move(made)) != 0 ? pool : nullptr;
}

Pool* gpupool::client::current_pool(const Device& device) {
  {
    std::lock_guard lock(pools().mutex);
    const auto current = pools().current.find(device.ordinal);
    auto* const pool = current == pools().current.end()
                           ? nullptr
                           : handles().find_as<Pool>(Kind::memory_pool, current->second);
    if (pool) return pool;
  }
  uint64_t handle = 0;
  return default_pool(device.ordinal, &handle) == CUDA_SUCCESS
             ? handles().find_as<Pool>(Kind::memory_pool, handle)
             : nullptr;
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
    if (!pool || !find_device(device)) return CUDA_ERROR_INVALID_VALUE;
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
    Device* const device = find_device(properties->location.id);
    if (!device) return CUDA_ERROR_INVALID_VALUE;
    const auto shares = device->attributes.find(CU_DEVICE_ATTRIBUTE_MEMPOOL_SUPPORTED_HANDLE_TYPES);
    const int offered = shares == device->attributes.end() ? 0 : shares->second;
    if ((properties->handleTypes & ~offered) != 0) return CUDA_ERROR_NOT_SUPPORTED;
#if CUDA_VERSION >= 12030
    const uint64_t max_size = properties->maxSize;
#else
    const uint64_t max_size = 0;
#endif
    const Pool* const made = make_pool(*device, properties->handleTypes, max_size);
    if (!made) return CUDA_ERROR_OUT_OF_MEMORY;
    *pool = cuda::handle_from_bits<CUmemoryPool>(made->handle);
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
      if (standard != pools().by_default.end() && standard->second == pool->handle)
        return CUDA_ERROR_INVALID_VALUE;
    }
    const auto memory = pool->memory;
    handles().retire(pool->handle);
    memory->abandon();
    return CUDA_SUCCESS;
  });
}

CUDA_EXPORT CUresult cuMemPoolSetAttribute(CUmemoryPool given, CUmemPool_attribute attribute, void* value) {
  Pool* pool = nullptr;
  if (const CUresult result = find(given, &pool); result != CUDA_SUCCESS) return result;
  if (!value) return CUDA_ERROR_INVALID_VALUE;
  return pool->memory->set(attribute, value);
}

CUDA_EXPORT CUresult cuMemPoolGetAttribute(CUmemoryPool given, CUmemPool_attribute attribute, void* value) {
  Pool* pool = nullptr;
  if (const CUresult result = find(given, &pool); result != CUDA_SUCCESS) return result;
  if (!value) return CUDA_ERROR_INVALID_VALUE;
  return pool->memory->get(attribute, value);
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
    // A device cannot lose access to its own pool. The documentation names no error code; NVIDIA's driver is
    // believed to return this one.
    if (device == own && flags != CU_MEM_ACCESS_FLAGS_PROT_READWRITE) return CUDA_ERROR_INVALID_DEVICE;
    if (device->session != own->session && flags != CU_MEM_ACCESS_FLAGS_PROT_NONE)
      return CUDA_ERROR_PEER_ACCESS_UNSUPPORTED;
  }
  return guarded([&] {
    for (size_t i = 0; i < count; ++i) {
      const Device& device = *find_device(map[i].location.id);
      if (device.session == own->session) pool->memory->set_access(device, map[i].flags);
    }
    return CUDA_SUCCESS;
  });
}

CUDA_EXPORT CUresult cuMemPoolGetAccess(CUmemAccess_flags* flags, CUmemoryPool given,
                                        CUmemLocation* location) {
  Pool* pool = nullptr;
  if (const CUresult result = find(given, &pool); result != CUDA_SUCCESS) return result;
  if (!flags || !location || location->type != CU_MEM_LOCATION_TYPE_DEVICE) return CUDA_ERROR_INVALID_VALUE;
  if (!find_device(location->id)) return CUDA_ERROR_INVALID_DEVICE;
  *flags = pool->memory->access(location->id);
  return CUDA_SUCCESS;
}

// First asks the server which work before earlier frees is done.
CUDA_EXPORT CUresult cuMemPoolTrimTo(CUmemoryPool given, size_t keep) {
  return guarded([&]() -> CUresult {
    Pool* pool = nullptr;
    if (const CUresult result = find(given, &pool); result != CUDA_SUCCESS) return result;
    for (const auto& free : stream_order().unpassed()) {
      if (const CUresult result = ask_passed(free.point); result != CUDA_SUCCESS) return result;
    }
    pool->memory->trim(keep);
    return CUDA_SUCCESS;
  });
}

CUDA_EXPORT CUresult cuMemAllocFromPoolAsync(CUdeviceptr* address, size_t bytes, CUmemoryPool given,
                                             CUstream stream) {
  Pool* pool = nullptr;
  if (const CUresult result = find(given, &pool); result != CUDA_SUCCESS) return result;
  return pool->imported_from == 0 ? allocate_from(*pool, address, bytes, stream) : CUDA_ERROR_INVALID_VALUE;
}
CUDA_EXPORT CUresult cuMemAllocFromPoolAsync_ptsz(CUdeviceptr* address, size_t bytes, CUmemoryPool pool,
                                                  CUstream stream) {
  return cuMemAllocFromPoolAsync(address, bytes, pool, stream ? stream : CU_STREAM_PER_THREAD);
}
