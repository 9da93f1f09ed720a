// The fake driver's memory: host memory, mappings, copies and fills.
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <new>
#include <span>
#include <string_view>
#include <unordered_map>

#include "common/sanitizers.h"
#include "tests/server/worker/fake_driver.h"

namespace gpupool::worker::test {
namespace {

using Lock = std::unique_lock<std::mutex>;

CUresult device_pointer(CUdeviceptr* device, void* memory, unsigned) {
  *device = reinterpret_cast<CUdeviceptr>(memory);
  return CUDA_SUCCESS;
}
CUresult host_alloc(void** memory, size_t size, unsigned) {
  const Lock lock(driver().mutex);
  if (!current_context()) return CUDA_ERROR_INVALID_CONTEXT;
  if (driver().sticky != CUDA_SUCCESS) return driver().sticky;
  *memory = ::operator new(size, std::align_val_t(4096));
  driver().pinned.insert(*memory);
  return CUDA_SUCCESS;
}
CUresult host_free(void* memory) {
  const Lock lock(driver().mutex);
  if (driver().pinned.erase(memory) == 0) return CUDA_ERROR_INVALID_VALUE;
  ::operator delete(memory, std::align_val_t(4096));
  return CUDA_SUCCESS;
}
CUresult host_register(void* memory, size_t, unsigned) {
  const Lock lock(driver().mutex);
  if (!current_context()) return CUDA_ERROR_INVALID_CONTEXT;
  return driver().registered.insert(memory).second ? CUDA_SUCCESS : CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED;
}
CUresult host_unregister(void* memory) {
  const Lock lock(driver().mutex);
  return driver().registered.erase(memory) != 0 ? CUDA_SUCCESS : CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED;
}
CUresult copy_bytes(void* to, const void* from, uint64_t checked, size_t size, CUstream stream) {
  {
    const Lock lock(driver().mutex);
    const auto global = reinterpret_cast<uint64_t>(driver().global.data());
    const bool is_global = checked >= global && checked + size <= global + driver().global.size();
    if (!is_global && !is_mapped(checked, size)) return CUDA_ERROR_INVALID_VALUE;
  }
  return enqueue(stream, [=] {
    std::memcpy(to, from, size);
    return true;
  });
}
CUresult copy_in(CUdeviceptr to, const void* from, size_t size, CUstream stream) {
  return copy_bytes(reinterpret_cast<void*>(to), from, to, size, stream);
}
CUresult copy_out(void* to, CUdeviceptr from, size_t size, CUstream stream) {
  return copy_bytes(to, reinterpret_cast<void*>(from), from, size, stream);
}
CUresult copy_2d(const CUDA_MEMCPY2D* copy, CUstream stream) {
  const bool in = copy->srcMemoryType == CU_MEMORYTYPE_HOST;
  for (size_t row = 0; row < copy->Height; ++row) {
    const CUresult result = in ? copy_in(copy->dstDevice + row * copy->dstPitch,
                                         static_cast<const std::byte*>(copy->srcHost) + row * copy->srcPitch,
                                         copy->WidthInBytes, stream)
                               : copy_out(static_cast<std::byte*>(copy->dstHost) + row * copy->dstPitch,
                                          copy->srcDevice + row * copy->srcPitch, copy->WidthInBytes, stream);
    if (result != CUDA_SUCCESS) return result;
  }
  return CUDA_SUCCESS;
}
CUresult fill(CUdeviceptr to, unsigned char value, size_t size, CUstream stream) {
  {
    const Lock lock(driver().mutex);
    if (!is_mapped(to, size)) return CUDA_ERROR_INVALID_VALUE;
  }
  return enqueue(stream, [=] {
    std::memset(reinterpret_cast<void*>(to), value, size);
    return true;
  });
}

// Frees the allocation once its handle is released and it is mapped nowhere, as CUDA does.
void let_go(uint64_t handle) {
  const auto known = driver().physical.find(handle);
  if (--known->second.uses != 0) return;
  driver().memory_used -= known->second.size;
  ::close(known->second.file);
  driver().physical.erase(known);
}
CUresult create_memory(CUmemGenericAllocationHandle* handle, size_t size, const CUmemAllocationProp*,
                       unsigned long long) {
  const Lock lock(driver().mutex);
  if (driver().memory_used + size > FakeDriver::kMemory) return CUDA_ERROR_OUT_OF_MEMORY;
  const int file = ::memfd_create("physical", MFD_CLOEXEC);
  if (::ftruncate(file, static_cast<off_t>(size)) != 0) return CUDA_ERROR_OUT_OF_MEMORY;
  const std::vector<std::byte> dirt(driver().zeroes_memory ? 0 : size, FakeDriver::kDirt);
  if (::pwrite(file, dirt.data(), dirt.size(), 0) != static_cast<ssize_t>(dirt.size()))
    return CUDA_ERROR_OUT_OF_MEMORY;
  driver().memory_used += size;
  *handle = driver().next_handle++;
  driver().physical[*handle] = {size, file};
  return CUDA_SUCCESS;
}
CUresult release_memory(CUmemGenericAllocationHandle handle) {
  const Lock lock(driver().mutex);
  if (const auto object = driver().multicasts.find(handle); object != driver().multicasts.end()) {
    if (!object->second.bound.empty()) ++driver().misused;  // nothing would report its bound memory
    driver().multicasts.erase(object);
    return CUDA_SUCCESS;
  }
  const auto known = driver().physical.find(handle);
  if (known == driver().physical.end() || known->second.released) return CUDA_ERROR_INVALID_VALUE;
  known->second.released = true;
  let_go(handle);
  return CUDA_SUCCESS;
}
CUresult map_memory(CUdeviceptr address, size_t size, size_t offset, CUmemGenericAllocationHandle handle,
                    unsigned long long) {
  const Lock lock(driver().mutex);
  const auto known = driver().physical.find(handle);
  if (known == driver().physical.end() || known->second.released || driver().mapped.contains(address))
    return CUDA_ERROR_INVALID_VALUE;
  if (offset > known->second.size || size > known->second.size - offset) return CUDA_ERROR_INVALID_VALUE;
  ::mmap(reinterpret_cast<void*>(address), size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED,
         known->second.file, static_cast<off_t>(offset));
  driver().mapped[address] = {size, handle, {}, false};
  ++known->second.uses;
  return CUDA_SUCCESS;
}
CUresult unmap_memory(CUdeviceptr address, size_t size) {
  const Lock lock(driver().mutex);
  const auto known = driver().mapped.find(address);
  if (known == driver().mapped.end() || known->second.size != size || address == driver().stuck)
    return CUDA_ERROR_INVALID_VALUE;
  let_go(known->second.handle);
  driver().mapped.erase(known);
  ::mmap(reinterpret_cast<void*>(address), size, PROT_NONE,
         MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED | MAP_NORESERVE, -1, 0);
  return CUDA_SUCCESS;
}
CUresult set_access(CUdeviceptr address, size_t size, const CUmemAccessDesc* access, size_t count) {
  const Lock lock(driver().mutex);
  const auto known = driver().mapped.find(address);
  if (known == driver().mapped.end() || known->second.size != size) return CUDA_ERROR_INVALID_VALUE;
  bool host = false;
  for (const CUmemAccessDesc& one : std::span(access, count)) {
    if (one.location.type == CU_MEM_LOCATION_TYPE_DEVICE)
      known->second.access[one.location.id] = one.flags;
    else
      host = true;
  }
  known->second.host = host;
  if (driver().host_access == FakeDriver::HostAccess::faults) {  // any access faults while the CPU has access
    ::mprotect(reinterpret_cast<void*>(address), size, host ? PROT_NONE : PROT_READ | PROT_WRITE);
  }
  return CUDA_SUCCESS;
}
// Aligned to the granularity, as a driver does.
CUresult reserve(CUdeviceptr* address, size_t size, size_t, CUdeviceptr wished, unsigned long long) {
  constexpr uint64_t kUnit = FakeDriver::kGranularity;
  if (kThreadSanitized && wished >= kThreadSanitizerEnd) wished >>= 8;
  const auto map = [&](size_t bytes) {
    return ::mmap(reinterpret_cast<void*>(wished), bytes, PROT_NONE,
                  MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  };
  void* got = map(size);
  if (got == MAP_FAILED) return CUDA_ERROR_OUT_OF_MEMORY;
  *address = reinterpret_cast<CUdeviceptr>(got);
  if (*address % kUnit == 0) return CUDA_SUCCESS;
  ::munmap(got, size);
  got = map(size + kUnit);
  if (got == MAP_FAILED) return CUDA_ERROR_OUT_OF_MEMORY;
  const auto begin = reinterpret_cast<CUdeviceptr>(got);
  *address = (begin + kUnit - 1) / kUnit * kUnit;
  const CUdeviceptr end = *address + (size + 4095) / 4096 * 4096;
  if (*address != begin) ::munmap(got, *address - begin);
  ::munmap(reinterpret_cast<void*>(end), begin + size + kUnit - end);
  return CUDA_SUCCESS;
}
CUresult free_range(CUdeviceptr address, size_t size) {
  ::munmap(reinterpret_cast<void*>(address), size);
  return CUDA_SUCCESS;
}

#if CUDA_VERSION >= 12010
// Counts offsets and sizes that the worker should not have passed; a real driver would trust them.
bool check(bool good) {
  if (!good) ++driver().misused;
  return good;
}
CUresult create_multicast(CUmemGenericAllocationHandle* handle, const CUmulticastObjectProp* properties) {
  const Lock lock(driver().mutex);
  if (!check(properties->handleTypes <= CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR && properties->flags == 0))
    return CUDA_ERROR_INVALID_VALUE;
  *handle = driver().next_handle++;
  driver().multicasts[*handle] = {properties->size, {}, {}};
  return CUDA_SUCCESS;
}
CUresult add_multicast_device(CUmemGenericAllocationHandle handle, CUdevice device) {
  const Lock lock(driver().mutex);
  const auto known = driver().multicasts.find(handle);
  if (!check(known != driver().multicasts.end() && device == 0)) return CUDA_ERROR_INVALID_VALUE;
  return known->second.devices.insert(device).second ? CUDA_SUCCESS : CUDA_ERROR_INVALID_DEVICE;
}
CUresult bind_multicast(CUmemGenericAllocationHandle handle, size_t offset,
                        CUmemGenericAllocationHandle memory, size_t memory_offset, size_t size,
                        unsigned long long) {
  const Lock lock(driver().mutex);
  const auto known = driver().multicasts.find(handle);
  const auto bound = driver().physical.find(memory);
  if (!check(known != driver().multicasts.end() && bound != driver().physical.end()))
    return CUDA_ERROR_INVALID_VALUE;
  const bool inside = offset + size <= known->second.size && memory_offset + size <= bound->second.size &&
                      offset + size >= size && memory_offset + size >= size;
  if (!check(inside)) return CUDA_ERROR_INVALID_VALUE;
  if (known->second.devices.empty()) return CUDA_ERROR_INVALID_DEVICE;
  known->second.bound.push_back({memory, offset, size});
  ++bound->second.uses;
  return CUDA_SUCCESS;
}
CUresult unbind_multicast(CUmemGenericAllocationHandle handle, CUdevice, size_t offset, size_t size) {
  const Lock lock(driver().mutex);
  const auto known = driver().multicasts.find(handle);
  if (!check(known != driver().multicasts.end())) return CUDA_ERROR_INVALID_VALUE;
  auto& all = known->second.bound;
  const auto bound = std::find_if(all.begin(), all.end(),
                                  [&](const auto& one) { return one.offset == offset && one.size == size; });
  if (!check(bound != all.end())) return CUDA_ERROR_INVALID_VALUE;
  let_go(bound->memory);
  all.erase(bound);
  return CUDA_SUCCESS;
}
CUresult bind_address(CUmemGenericAllocationHandle, size_t, CUdeviceptr, size_t, unsigned long long) {
  const Lock lock(driver().mutex);
  check(false);  // the worker must bind by allocation, so that the memory stays alive
  return CUDA_ERROR_INVALID_VALUE;
}
CUresult multicast_granularity(size_t* granularity, const CUmulticastObjectProp* properties,
                               CUmulticastGranularity_flags) {
  const Lock lock(driver().mutex);
  *granularity = FakeDriver::kGranularity;
  return check(properties->handleTypes <= CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR)
             ? CUDA_SUCCESS
             : CUDA_ERROR_NOT_SUPPORTED;
}
#endif

#if CUDA_VERSION >= 12080
CUresult decompress(CUmemDecompressParams* operations, size_t count, unsigned, size_t*, CUstream) {
  const Lock lock(driver().mutex);
  for (const CUmemDecompressParams& one : std::span(operations, count)) {
    const auto from = reinterpret_cast<uint64_t>(one.src), to = reinterpret_cast<uint64_t>(one.dst),
               written = reinterpret_cast<uint64_t>(one.dstActBytes);
    const uint64_t most = std::max<uint64_t>(one.dstNumBytes, 1);
    // Inside the session's range the device itself checks whether memory is mapped.
    const auto belongs = [](uint64_t address, uint64_t size) {
      const uint64_t offset = address - driver().range_base;
      return offset <= driver().range_size && size <= driver().range_size - offset;
    };
    if (!check(belongs(from, one.srcNumBytes) && belongs(to, most) && belongs(written, 4)))
      return CUDA_ERROR_INVALID_VALUE;
    if (!is_mapped(from, one.srcNumBytes) || !is_mapped(to, most) || !is_mapped(written, 4))
      return CUDA_ERROR_INVALID_VALUE;
    driver().decompressed.emplace_back(from, to);
  }
  return CUDA_SUCCESS;
}
#endif

int zeroes_memory() {
  return driver().zeroes_memory;
}
CUresult memory_info(size_t* free, size_t* total) {
  const Lock lock(driver().mutex);
  *total = FakeDriver::kMemory;
  *free = FakeDriver::kMemory - driver().memory_used;
  return CUDA_SUCCESS;
}

const std::unordered_map<std::string_view, void*> kMemorySymbols = {
    FAKE(cuMemGetInfo_v2, memory_info),
    {"softgpu_zeroes_memory", reinterpret_cast<void*>(&zeroes_memory)},
    FAKE(cuMemHostAlloc, host_alloc),
    FAKE(cuMemFreeHost, host_free),
    FAKE(cuMemHostRegister_v2, host_register),
    FAKE(cuMemHostUnregister, host_unregister),
    FAKE(cuMemcpyHtoDAsync_v2, copy_in),
    FAKE(cuMemcpyDtoHAsync_v2, copy_out),
    FAKE(cuMemcpy2DAsync_v2, copy_2d),
    FAKE(cuMemsetD8Async, fill),
    FAKE(cuMemCreate, create_memory),
    FAKE(cuMemRelease, release_memory),
    FAKE(cuMemMap, map_memory),
    FAKE(cuMemUnmap, unmap_memory),
    FAKE(cuMemSetAccess, set_access),
    FAKE(cuMemAddressReserve, reserve),
    FAKE(cuMemAddressFree, free_range),
    FAKE(cuMemHostGetDevicePointer_v2, device_pointer),
#if CUDA_VERSION >= 12010
    FAKE(cuMulticastCreate, create_multicast),
    FAKE(cuMulticastAddDevice, add_multicast_device),
    FAKE(cuMulticastBindMem, bind_multicast),
    FAKE(cuMulticastBindAddr, bind_address),
    FAKE(cuMulticastUnbind, unbind_multicast),
    FAKE(cuMulticastGetGranularity, multicast_granularity),
#endif
#if CUDA_VERSION >= 12080
    FAKE(cuMemBatchDecompressAsync, decompress),
#endif
};

}  // namespace

bool is_mapped(uint64_t address, size_t size) {
  auto place = driver().mapped.upper_bound(address);
  if (place == driver().mapped.begin()) return false;
  --place;
  return address + size <= place->first + place->second.size &&
         place->second.access[0] != CU_MEM_ACCESS_FLAGS_PROT_NONE;
}

void* fake_memory_symbol(std::string_view name) {
  const auto found = kMemorySymbols.find(name);
  return found == kMemorySymbols.end() ? nullptr : found->second;
}

}  // namespace gpupool::worker::test
