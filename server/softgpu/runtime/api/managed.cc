// Managed memory. Host and devices share it: advice and prefetches are checked and stored, and move nothing.
#include "protocol/calls/managed.h"

#include <mutex>

#include "server/softgpu/runtime/api/call.h"
#include "server/softgpu/runtime/api/memory.h"
#include "server/softgpu/runtime/graph.h"
#include "server/softgpu/runtime/stream.h"

using namespace gpupool;
using namespace gpupool::softgpu;
using namespace gpupool::softgpu::api;
using cuda::ManagedLocation;

namespace {

struct Advice {
  std::mutex mutex;
  cuda::ManagedAdvice given;
};
Advice& advice() {
  static Advice* const only = new Advice;  // never destroyed, like the runtime
  return *only;
}

int device_count() {
  return static_cast<int>(runtime().devices().size());
}

CUresult check_managed(CUdeviceptr address, size_t size) {
  const auto range = runtime().memory().find(address);
  if (size == 0 || !range || !range->is_managed()) return CUDA_ERROR_INVALID_VALUE;
  return size <= range->size - (address - range->address) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUresult advise(CUdeviceptr address, size_t size, CUmem_advise what, const ManagedLocation& place) {
  return call_in_context([&](Context&) {
    if (const CUresult result = check_managed(address, size); result != CUDA_SUCCESS) return result;
    const std::lock_guard lock(advice().mutex);
    return advice().given.advise(address, size, what, place, device_count());
  });
}

CUresult prefetch(CUdeviceptr address, size_t size, const ManagedLocation& place, unsigned flags,
                  CUstream stream) {
  return call_on_stream(stream, [&](Stream&) {
    if (flags != 0) return CUDA_ERROR_INVALID_VALUE;
    if (const CUresult result = cuda::check_location(place, device_count()); result != CUDA_SUCCESS)
      return result;
    if (const CUresult result = check_managed(address, size); result != CUDA_SUCCESS) return result;
    const std::lock_guard lock(advice().mutex);
    advice().given.prefetched(address, size, place);
    return CUDA_SUCCESS;
  });
}

#if CUDA_VERSION >= 12020
ManagedLocation place_of(const CUmemLocation& location) {
  return {static_cast<int>(location.type), location.id};
}
#endif

#if CUDA_VERSION >= 13000
struct Batch {
  CUdeviceptr* addresses;
  size_t* sizes;
  size_t count;
  unsigned long long flags;
  CUstream stream;
};

CUresult run_batch(const Batch& batch, const CUmemLocation* places, const size_t* firsts, size_t places_count,
                   bool prefetches) {
  return call([&] {
    CUresult result = cuda::check_batch(batch.addresses, batch.sizes, batch.count, batch.flags, batch.stream);
    if (result == CUDA_SUCCESS && prefetches)
      result = cuda::check_batch_locations(firsts, places, places_count, batch.count);
    if (result != CUDA_SUCCESS) return result;
    return call_on_stream(batch.stream, [&](Stream&) {
      for (size_t i = 0; prefetches && i < places_count; ++i) {
        if (const CUresult bad = cuda::check_location(place_of(places[i]), device_count());
            bad != CUDA_SUCCESS)
          return bad;
      }
      for (size_t i = 0; i < batch.count; ++i) {
        if (const CUresult bad = check_managed(batch.addresses[i], batch.sizes[i]); bad != CUDA_SUCCESS)
          return bad;
      }
      const std::lock_guard lock(advice().mutex);
      for (size_t i = 0, place = 0; prefetches && i < batch.count; ++i) {
        if (place + 1 < places_count && firsts[place + 1] <= i) ++place;
        advice().given.prefetched(batch.addresses[i], batch.sizes[i], place_of(places[place]));
      }
      return CUDA_SUCCESS;
    });
  });
}
#endif

}  // namespace

CUDA_EXPORT CUresult cuMemAllocManaged(CUdeviceptr* address, size_t size, unsigned int flags) {
  return call_in_context([&](Context& context) {
    if (const CUresult refused = refuse_unsafe(); refused != CUDA_SUCCESS) return refused;
    if (flags != CU_MEM_ATTACH_GLOBAL && flags != CU_MEM_ATTACH_HOST) return CUDA_ERROR_INVALID_VALUE;
    if (address == nullptr || size == 0) return CUDA_ERROR_INVALID_VALUE;
    uint64_t memory = 0;
    const CUresult result = allocate_device(context, size, MemoryKind::managed, flags, &memory);
    if (result != CUDA_SUCCESS) return result;
    const std::lock_guard lock(advice().mutex);
    advice().given.forget(memory, size);  // advice about earlier memory at this address
    *address = memory;
    return CUDA_SUCCESS;
  });
}

CUDA_EXPORT CUresult cuMemAdvise(CUdeviceptr address, size_t size, CUmem_advise what, CUdevice device) {
  return advise(address, size, what, ManagedLocation::of_device(device));
}
CUDA_EXPORT CUresult cuMemPrefetchAsync(CUdeviceptr address, size_t size, CUdevice device, CUstream stream) {
  return prefetch(address, size, ManagedLocation::of_device(device), 0, stream);
}
#if CUDA_VERSION >= 12020
CUDA_EXPORT CUresult cuMemAdvise_v2(CUdeviceptr address, size_t size, CUmem_advise what,
                                    CUmemLocation location) {
  return advise(address, size, what, place_of(location));
}
CUDA_EXPORT CUresult cuMemPrefetchAsync_v2(CUdeviceptr address, size_t size, CUmemLocation location,
                                           unsigned int flags, CUstream stream) {
  return prefetch(address, size, place_of(location), flags, stream);
}
#endif

#if CUDA_VERSION >= 13000
CUDA_EXPORT CUresult cuMemPrefetchBatchAsync(CUdeviceptr* addresses, size_t* sizes, size_t count,
                                             CUmemLocation* places, size_t* firsts, size_t places_count,
                                             unsigned long long flags, CUstream stream) {
  return run_batch({addresses, sizes, count, flags, stream}, places, firsts, places_count, true);
}
CUDA_EXPORT CUresult cuMemDiscardBatchAsync(CUdeviceptr* addresses, size_t* sizes, size_t count,
                                            unsigned long long flags, CUstream stream) {
  return run_batch({addresses, sizes, count, flags, stream}, nullptr, nullptr, 0, false);
}
CUDA_EXPORT CUresult cuMemDiscardAndPrefetchBatchAsync(CUdeviceptr* addresses, size_t* sizes, size_t count,
                                                       CUmemLocation* places, size_t* firsts,
                                                       size_t places_count, unsigned long long flags,
                                                       CUstream stream) {
  return run_batch({addresses, sizes, count, flags, stream}, places, firsts, places_count, true);
}
#endif

CUDA_EXPORT CUresult cuMemRangeGetAttribute(void* data, size_t data_size, CUmem_range_attribute attribute,
                                            CUdeviceptr address, size_t size) {
  return call([&] {
    if (const CUresult result = check_managed(address, size); result != CUDA_SUCCESS) return result;
    const std::lock_guard lock(advice().mutex);
    return advice().given.get(data, data_size, attribute, address, size);
  });
}

CUDA_EXPORT CUresult cuMemRangeGetAttributes(void** data, size_t* data_sizes,
                                             CUmem_range_attribute* attributes, size_t count,
                                             CUdeviceptr address, size_t size) {
  return call([&] {
    if (data == nullptr || data_sizes == nullptr || attributes == nullptr || count == 0)
      return CUDA_ERROR_INVALID_VALUE;
    for (size_t i = 0; i < count; ++i) {
      const CUresult result = cuMemRangeGetAttribute(data[i], data_sizes[i], attributes[i], address, size);
      if (result != CUDA_SUCCESS) return result;
    }
    return CUDA_SUCCESS;
  });
}

CUDA_EXPORT CUresult cuStreamAttachMemAsync(CUstream stream, CUdeviceptr address, size_t size,
                                            unsigned int flags) {
  return call_on_stream(stream, [&](Stream&) {
    if (flags != CU_MEM_ATTACH_GLOBAL && flags != CU_MEM_ATTACH_HOST && flags != CU_MEM_ATTACH_SINGLE) {
      return CUDA_ERROR_INVALID_VALUE;
    }
    if (flags == CU_MEM_ATTACH_SINGLE && (stream == nullptr || stream == CU_STREAM_LEGACY))
      return CUDA_ERROR_INVALID_VALUE;
    const auto range = runtime().memory().find(address);
    if (!range || !range->is_managed() || range->address != address) return CUDA_ERROR_INVALID_VALUE;
    return size == 0 || size == range->size ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
  });
}
