// Managed memory: a device allocation that the program has at the same address (client/memory/mirrors.h), and
// the program's hints about its use. Advice is stored; a prefetch moves data.
#include "protocol/calls/managed.h"

#include "client/api/device_range.h"
#include "client/graphs/capture.h"
#include "client/graphs/graph_memory.h"
#include "client/memory/mirrors.h"
#include "protocol/driver/exports.h"

using namespace gpupool;
using namespace gpupool::client;
using cuda::ManagedLocation;

namespace {

struct Advice {
  std::mutex mutex;
  cuda::ManagedAdvice given;
};
Advice& advice() {
  static Advice* const only = new Advice;
  return *only;
}

int device_count() {
  return static_cast<int>(devices().size());
}

// Checks that the whole range is managed memory.
CUresult check_range(CUdeviceptr address, size_t bytes) {
  const auto about = mirrors().find(address);
  if (bytes == 0 || !about || !about->managed) return CUDA_ERROR_INVALID_VALUE;
  return bytes <= about->bytes - (address - about->address) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUresult advise(CUdeviceptr address, size_t bytes, CUmem_advise what, const ManagedLocation& place) {
  return guarded([&]() -> CUresult {
    Session* session = nullptr;
    Context* context = nullptr;
    if (const CUresult result = require_context(&session, &context); result != CUDA_SUCCESS) return result;
    if (const CUresult result = check_range(address, bytes); result != CUDA_SUCCESS) return result;
    const std::lock_guard lock(advice().mutex);
    return advice().given.advise(address, bytes, what, place, device_count());
  });
}

// A prefetch to the host is synchronous: afterwards the program may also pass the memory to system calls.
CUresult move(Context& context, CUstream stream, CUdeviceptr address, size_t bytes,
              const ManagedLocation& place) {
  Mirrors::PendingWrite use;
  const CUresult result = place.is_device() ? mirrors().before_use(context, address, bytes, &use)
                                            : mirrors().fetch_to_host(context, stream, address, bytes);
  if (result != CUDA_SUCCESS) return result;
  const std::lock_guard lock(advice().mutex);
  advice().given.prefetched(address, bytes, place);
  return CUDA_SUCCESS;
}

CUresult enter(CUstream& stream, Context** context) {
  Session* session = nullptr;
  if (const CUresult result = require_stream_for_work(&session, context, stream); result != CUDA_SUCCESS)
    return result;
  return capture::refuse(**context, stream);
}

CUresult prefetch(CUdeviceptr address, size_t bytes, const ManagedLocation& place, unsigned flags,
                  CUstream stream) {
  return guarded([&]() -> CUresult {
    Context* context = nullptr;
    if (const CUresult result = enter(stream, &context); result != CUDA_SUCCESS) return result;
    if (flags != 0) return CUDA_ERROR_INVALID_VALUE;
    if (const CUresult result = cuda::check_location(place, device_count()); result != CUDA_SUCCESS)
      return result;
    if (const CUresult result = check_range(address, bytes); result != CUDA_SUCCESS) return result;
    return move(*context, stream, address, bytes, place);
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

// After a discard the contents are undefined, so nothing is done for it.
CUresult batch(Batch batch, const CUmemLocation* places, const size_t* firsts, size_t places_count,
               bool prefetches) {
  return guarded([&]() -> CUresult {
    if (const CUresult result = ready(); result != CUDA_SUCCESS) return result;
    if (const CUresult result =
            cuda::check_batch(batch.addresses, batch.sizes, batch.count, batch.flags, batch.stream);
        result != CUDA_SUCCESS) {
      return result;
    }
    if (prefetches) {
      if (const CUresult result = cuda::check_batch_locations(firsts, places, places_count, batch.count);
          result != CUDA_SUCCESS)
        return result;
    }
    Context* context = nullptr;
    if (const CUresult result = enter(batch.stream, &context); result != CUDA_SUCCESS) return result;
    for (size_t i = 0; prefetches && i < places_count; ++i) {
      if (const CUresult result = cuda::check_location(place_of(places[i]), device_count());
          result != CUDA_SUCCESS)
        return result;
    }
    for (size_t i = 0; i < batch.count; ++i) {
      if (const CUresult result = check_range(batch.addresses[i], batch.sizes[i]); result != CUDA_SUCCESS)
        return result;
    }
    for (size_t i = 0, place = 0; prefetches && i < batch.count; ++i) {
      if (place + 1 < places_count && firsts[place + 1] <= i) ++place;
      const CUresult result =
          move(*context, batch.stream, batch.addresses[i], batch.sizes[i], place_of(places[place]));
      if (result != CUDA_SUCCESS) return result;
    }
    return CUDA_SUCCESS;
  });
}
#endif

CUresult attach(CUstream stream, CUdeviceptr address, size_t bytes, unsigned flags) {
  return guarded([&]() -> CUresult {
    const bool null_stream = stream == nullptr || stream == CU_STREAM_LEGACY;
    Context* context = nullptr;
    if (const CUresult result = enter(stream, &context); result != CUDA_SUCCESS) return result;
    if (flags != CU_MEM_ATTACH_GLOBAL && flags != CU_MEM_ATTACH_HOST && flags != CU_MEM_ATTACH_SINGLE)
      return CUDA_ERROR_INVALID_VALUE;
    if (flags == CU_MEM_ATTACH_SINGLE && null_stream) return CUDA_ERROR_INVALID_VALUE;
    const auto about = mirrors().find(address);
    if (!about || !about->managed || about->address != address) return CUDA_ERROR_INVALID_VALUE;
    if (bytes != 0 && bytes != about->bytes) return CUDA_ERROR_INVALID_VALUE;
    return mirrors().attach(*context, stream, address,
                            flags == CU_MEM_ATTACH_GLOBAL ? Attachment::global
                            : flags == CU_MEM_ATTACH_HOST ? Attachment::host
                                                          : Attachment::stream);
  });
}

}  // namespace

void gpupool::client::forget_advice(uint64_t address, uint64_t bytes) {
  const std::lock_guard lock(advice().mutex);
  advice().given.forget(address, bytes);
}

CUDA_EXPORT CUresult cuMemAllocManaged(CUdeviceptr* address, size_t bytes, unsigned int flags) {
  return guarded([&]() -> CUresult {
    Session* session = nullptr;
    Context* context = nullptr;
    if (const CUresult result = require_context(&session, &context); result != CUDA_SUCCESS) return result;
    if (const CUresult refused = capture::refuse_unsafe(); refused != CUDA_SUCCESS) return refused;
    if (flags != CU_MEM_ATTACH_GLOBAL && flags != CU_MEM_ATTACH_HOST) return CUDA_ERROR_INVALID_VALUE;
    CUdeviceptr made = 0;
    if (!address) return CUDA_ERROR_INVALID_VALUE;
    if (const CUresult result = allocate_memory(*context, bytes, &made, true); result != CUDA_SUCCESS)
      return result;
    const CUresult result = mirrors().add_managed(
        *session, *context, made, bytes, flags == CU_MEM_ATTACH_HOST ? Attachment::host : Attachment::global);
    if (result != CUDA_SUCCESS) {
      free_memory(*context, made);
      return result;
    }
    *address = made;
    return CUDA_SUCCESS;
  });
}

CUDA_EXPORT CUresult cuMemAdvise(CUdeviceptr address, size_t bytes, CUmem_advise what, CUdevice device) {
  return advise(address, bytes, what, ManagedLocation::of_device(device));
}
CUDA_EXPORT CUresult cuMemPrefetchAsync(CUdeviceptr address, size_t bytes, CUdevice device, CUstream stream) {
  return prefetch(address, bytes, ManagedLocation::of_device(device), 0, stream);
}
CUDA_EXPORT CUresult cuMemPrefetchAsync_ptsz(CUdeviceptr address, size_t bytes, CUdevice device,
                                             CUstream stream) {
  return cuMemPrefetchAsync(address, bytes, device, or_per_thread(stream));
}
#if CUDA_VERSION >= 12020
CUDA_EXPORT CUresult cuMemAdvise_v2(CUdeviceptr address, size_t bytes, CUmem_advise what,
                                    CUmemLocation location) {
  return advise(address, bytes, what, place_of(location));
}
CUDA_EXPORT CUresult cuMemPrefetchAsync_v2(CUdeviceptr address, size_t bytes, CUmemLocation location,
                                           unsigned int flags, CUstream stream) {
  return prefetch(address, bytes, place_of(location), flags, stream);
}
CUDA_EXPORT CUresult cuMemPrefetchAsync_v2_ptsz(CUdeviceptr address, size_t bytes, CUmemLocation location,
                                                unsigned int flags, CUstream stream) {
  return cuMemPrefetchAsync_v2(address, bytes, location, flags, or_per_thread(stream));
}
#endif

#if CUDA_VERSION >= 13000
CUDA_EXPORT CUresult cuMemPrefetchBatchAsync(CUdeviceptr* addresses, size_t* sizes, size_t count,
                                             CUmemLocation* places, size_t* firsts, size_t places_count,
                                             unsigned long long flags, CUstream stream) {
  return batch({addresses, sizes, count, flags, stream}, places, firsts, places_count, true);
}
CUDA_EXPORT CUresult cuMemPrefetchBatchAsync_ptsz(CUdeviceptr* addresses, size_t* sizes, size_t count,
                                                  CUmemLocation* places, size_t* firsts, size_t places_count,
                                                  unsigned long long flags, CUstream stream) {
  return cuMemPrefetchBatchAsync(addresses, sizes, count, places, firsts, places_count, flags,
                                 or_per_thread(stream));
}
CUDA_EXPORT CUresult cuMemDiscardBatchAsync(CUdeviceptr* addresses, size_t* sizes, size_t count,
                                            unsigned long long flags, CUstream stream) {
  return batch({addresses, sizes, count, flags, stream}, nullptr, nullptr, 0, false);
}
CUDA_EXPORT CUresult cuMemDiscardBatchAsync_ptsz(CUdeviceptr* addresses, size_t* sizes, size_t count,
                                                 unsigned long long flags, CUstream stream) {
  return cuMemDiscardBatchAsync(addresses, sizes, count, flags, or_per_thread(stream));
}
CUDA_EXPORT CUresult cuMemDiscardAndPrefetchBatchAsync(CUdeviceptr* addresses, size_t* sizes, size_t count,
                                                       CUmemLocation* places, size_t* firsts,
                                                       size_t places_count, unsigned long long flags,
                                                       CUstream stream) {
  return batch({addresses, sizes, count, flags, stream}, places, firsts, places_count, true);
}
CUDA_EXPORT CUresult cuMemDiscardAndPrefetchBatchAsync_ptsz(CUdeviceptr* addresses, size_t* sizes,
                                                            size_t count, CUmemLocation* places,
                                                            size_t* firsts, size_t places_count,
                                                            unsigned long long flags, CUstream stream) {
  return cuMemDiscardAndPrefetchBatchAsync(addresses, sizes, count, places, firsts, places_count, flags,
                                           or_per_thread(stream));
}
#endif

CUDA_EXPORT CUresult cuMemRangeGetAttribute(void* data, size_t size, CUmem_range_attribute attribute,
                                            CUdeviceptr address, size_t bytes) {
  return guarded([&]() -> CUresult {
    if (const CUresult result = ready(); result != CUDA_SUCCESS) return result;
    if (const CUresult result = check_range(address, bytes); result != CUDA_SUCCESS) return result;
    const std::lock_guard lock(advice().mutex);
    return advice().given.get(data, size, attribute, address, bytes);
  });
}

CUDA_EXPORT CUresult cuMemRangeGetAttributes(void** data, size_t* sizes, CUmem_range_attribute* attributes,
                                             size_t count, CUdeviceptr address, size_t bytes) {
  if (!data || !sizes || !attributes || count == 0) {
    const CUresult result = ready();
    return result == CUDA_SUCCESS ? CUDA_ERROR_INVALID_VALUE : result;
  }
  for (size_t i = 0; i < count; ++i) {
    const CUresult result = cuMemRangeGetAttribute(data[i], sizes[i], attributes[i], address, bytes);
    if (result != CUDA_SUCCESS) return result;
  }
  return CUDA_SUCCESS;
}

CUDA_EXPORT CUresult cuStreamAttachMemAsync(CUstream stream, CUdeviceptr address, size_t bytes,
                                            unsigned int flags) {
  return attach(stream, address, bytes, flags);
}
CUDA_EXPORT CUresult cuStreamAttachMemAsync_ptsz(CUstream stream, CUdeviceptr address, size_t bytes,
                                                 unsigned int flags) {
  return attach(or_per_thread(stream), address, bytes, flags);
}
