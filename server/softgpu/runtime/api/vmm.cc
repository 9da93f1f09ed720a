// Virtual memory management: addresses, physical memory, mappings and access.
#include <shared_mutex>
#include <span>

#include "server/softgpu/memory/address_space.h"
#include "server/softgpu/runtime/api/call.h"
#include "server/softgpu/runtime/physical_memory.h"

using namespace gpupool::softgpu;
using namespace gpupool::softgpu::api;

namespace {

bool granular(uint64_t value) {
  return value % kGranule == 0;
}

CUresult check_properties(const CUmemAllocationProp* properties) {
  if (properties == nullptr || properties->type != CU_MEM_ALLOCATION_TYPE_PINNED)
    return CUDA_ERROR_INVALID_VALUE;
  if (properties->location.type != CU_MEM_LOCATION_TYPE_DEVICE) return CUDA_ERROR_INVALID_VALUE;
  if (runtime().device(properties->location.id) == nullptr) return CUDA_ERROR_INVALID_DEVICE;
  return CUDA_SUCCESS;
}

Ref<PhysicalMemory> find_physical(CUmemGenericAllocationHandle handle) {
  return runtime().handles().find<PhysicalMemory>(handle);
}

// Sets the access of one location; the other locations keep theirs.
void grant(MemoryRange& range, const CUmemAccessDesc& access) {
  const bool reads = access.flags != CU_MEM_ACCESS_FLAGS_PROT_NONE,
             writes = access.flags == CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
  if (access.location.type == CU_MEM_LOCATION_TYPE_DEVICE) {
    const uint64_t bit = uint64_t{1} << access.location.id;
    range.reading_devices = reads ? range.reading_devices | bit : range.reading_devices & ~bit;
    range.writing_devices = writes ? range.writing_devices | bit : range.writing_devices & ~bit;
  } else {
    range.host_reads = reads;
    range.host_writes = writes;
  }
  range.readable = range.reading_devices != 0 || range.host_reads;
  range.writable = range.writing_devices != 0 || range.host_writes;
}

}  // namespace

CUDA_EXPORT CUresult cuMemAddressReserve(CUdeviceptr* address, size_t size, size_t alignment,
                                         CUdeviceptr wish, unsigned long long flags) {
  return call([&] {
    if (address == nullptr || size == 0 || !granular(size) || flags != 0) return CUDA_ERROR_INVALID_VALUE;
    if ((alignment & (alignment - 1)) != 0) return CUDA_ERROR_INVALID_VALUE;
    const uint64_t aligned = alignment > kGranule ? alignment : kGranule;
    const auto reserved =
        allocate_addresses(size, aligned, runtime().config().rules.enforces(Rule::ignored_hints) ? 0 : wish);
    if (!reserved) return CUDA_ERROR_OUT_OF_MEMORY;
    runtime().reservations().add(*reserved, size);
    *address = *reserved;
    return CUDA_SUCCESS;
  });
}

CUDA_EXPORT CUresult cuMemAddressFree(CUdeviceptr address, size_t size) {
  return call([&] {
    if (runtime().memory().overlaps(address, size)) return CUDA_ERROR_INVALID_VALUE;
    if (!runtime().reservations().remove(address, size)) return CUDA_ERROR_INVALID_VALUE;
    free_addresses(address, size);
    return CUDA_SUCCESS;
  });
}

CUDA_EXPORT CUresult cuMemGetAllocationGranularity(size_t* granularity, const CUmemAllocationProp* properties,
                                                   CUmemAllocationGranularity_flags option) {
  return call([&] {
    if (granularity == nullptr || option < CU_MEM_ALLOC_GRANULARITY_MINIMUM ||
        option > CU_MEM_ALLOC_GRANULARITY_RECOMMENDED)
      return CUDA_ERROR_INVALID_VALUE;
    if (const CUresult result = check_properties(properties); result != CUDA_SUCCESS) return result;
    *granularity = kGranule;
    return CUDA_SUCCESS;
  });
}

CUDA_EXPORT CUresult cuMemCreate(CUmemGenericAllocationHandle* handle, size_t size,
                                 const CUmemAllocationProp* properties, unsigned long long flags) {
  return call([&] {
    if (handle == nullptr || size == 0 || !granular(size) || flags != 0) return CUDA_ERROR_INVALID_VALUE;
    if (const CUresult result = check_properties(properties); result != CUDA_SUCCESS) return result;
    if ((properties->requestedHandleTypes & ~CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR) != 0)
      return CUDA_ERROR_NOT_SUPPORTED;
    std::shared_ptr<Memory> memory;
    const CUresult result = runtime().device(properties->location.id)->create_physical(size, &memory);
    if (result != CUDA_SUCCESS) return result;
    const Ref<PhysicalMemory> physical = make_ref<PhysicalMemory>(std::move(memory), *properties);
    physical->handle = runtime().handles().add(physical);
    if (physical->handle == 0) return CUDA_ERROR_OUT_OF_MEMORY;
    *handle = physical->handle;
    return charged(Cost::mem_create, Cost::mem_create_mib, size);
  });
}

CUDA_EXPORT CUresult cuMemRelease(CUmemGenericAllocationHandle handle) {
  return call([&] {
    const Ref<PhysicalMemory> physical = find_physical(handle);
    if (!physical) return CUDA_ERROR_INVALID_VALUE;
    if (physical->handle_count.fetch_sub(1) == 1) runtime().handles().remove<PhysicalMemory>(handle);
    return charged(Cost::mem_release, Cost::mem_release_mib, physical->memory->size());
  });
}

CUDA_EXPORT CUresult cuMemMap(CUdeviceptr address, size_t size, size_t offset,
                              CUmemGenericAllocationHandle handle, unsigned long long flags) {
  return call([&] {
    if (size == 0 || flags != 0 || !granular(address) || !granular(size) || !granular(offset)) {
      return CUDA_ERROR_INVALID_VALUE;
    }
    const Ref<PhysicalMemory> physical = find_physical(handle);
    if (!physical) return CUDA_ERROR_INVALID_VALUE;
    const uint64_t total = physical->memory->size();
    if (offset > total || size > total - offset) return CUDA_ERROR_INVALID_VALUE;
    if (!runtime().reservations().contains(address, size)) return CUDA_ERROR_INVALID_VALUE;
    MemoryRange range;
    range.address = address;
    range.size = size;
    range.kind = MemoryKind::mapped;
    range.device = physical->properties.location.id;
    range.owner = physical;
    range.offset = offset;
    range.readable = range.writable = false;  // until cuMemSetAccess
    if (!runtime().memory().add(range)) return CUDA_ERROR_INVALID_VALUE;
    if (!map_memory(physical->memory, offset, address, size) ||
        !protect_memory(address, size, false, false)) {
      runtime().memory().take(address, [](const MemoryRange&) { return true; });
      return CUDA_ERROR_OUT_OF_MEMORY;
    }
    return charged(Cost::mem_map);
  });
}

CUDA_EXPORT CUresult cuMemUnmap(CUdeviceptr address, size_t size) {
  return call([&] {
    const std::vector<uint64_t> starts = runtime().memory().starts_within(address, size);
    if (starts.empty()) return CUDA_ERROR_INVALID_VALUE;
    const auto mapped = [](const MemoryRange& range) { return range.kind == MemoryKind::mapped; };
    for (const uint64_t start : starts) {
      const auto range = runtime().memory().take(start, mapped);
      if (!range) return CUDA_ERROR_INVALID_VALUE;
      runtime().release(*range);
    }
    return charged(Cost::mem_unmap, Cost::mem_unmap_mib, size);
  });
}

CUDA_EXPORT CUresult cuMemSetAccess(CUdeviceptr address, size_t size, const CUmemAccessDesc* descriptors,
                                    size_t count) {
  return call([&] {
    if (descriptors == nullptr || count == 0 || size == 0) return CUDA_ERROR_INVALID_VALUE;
    const std::span<const CUmemAccessDesc> granted(descriptors, count);
    for (const CUmemAccessDesc& one : granted) {
      if (one.location.type == CU_MEM_LOCATION_TYPE_DEVICE && runtime().device(one.location.id) == nullptr)
        return CUDA_ERROR_INVALID_DEVICE;
      if (one.location.type != CU_MEM_LOCATION_TYPE_DEVICE &&
          runtime().config().rules.enforces(Rule::no_host_access))
        return CUDA_ERROR_INVALID_VALUE;
      const bool known = one.flags == CU_MEM_ACCESS_FLAGS_PROT_NONE ||
                         one.flags == CU_MEM_ACCESS_FLAGS_PROT_READ ||
                         one.flags == CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
      if (!known) return CUDA_ERROR_INVALID_VALUE;
    }
    const std::vector<uint64_t> starts = runtime().memory().starts_within(address, size);
    if (starts.empty()) return CUDA_ERROR_INVALID_VALUE;
    for (const uint64_t start : starts) {
      const auto range = runtime().memory().find(start);
      if (!range || range->kind != MemoryKind::mapped) return CUDA_ERROR_INVALID_VALUE;
    }
    costs().charge(Cost::mem_set_access, Cost::mem_set_access_mib, size);
    std::lock_guard access(runtime().memory().access_lock());
    bool done = true;
    runtime().memory().change(address, size, [&](MemoryRange& range) {
      for (const CUmemAccessDesc& one : granted) grant(range, one);
      done &= protect_memory(range.address, range.size, range.readable, range.writable);
    });
    return done ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
  });
}

CUDA_EXPORT CUresult cuMemGetAccess(unsigned long long* flags, const CUmemLocation* location,
                                    CUdeviceptr address) {
  return call([&] {
    if (flags == nullptr || location == nullptr) return CUDA_ERROR_INVALID_VALUE;
    const auto range = runtime().memory().find(address);
    if (!range || range->kind != MemoryKind::mapped) return CUDA_ERROR_INVALID_VALUE;
    const bool of_device = location->type == CU_MEM_LOCATION_TYPE_DEVICE;
    if (of_device && runtime().device(location->id) == nullptr) return CUDA_ERROR_INVALID_DEVICE;
    const uint64_t bit = of_device ? uint64_t{1} << location->id : 0;
    const bool reads = of_device ? (range->reading_devices & bit) != 0 : range->host_reads;
    const bool writes = of_device ? (range->writing_devices & bit) != 0 : range->host_writes;
    *flags = writes  ? CU_MEM_ACCESS_FLAGS_PROT_READWRITE
             : reads ? CU_MEM_ACCESS_FLAGS_PROT_READ
                     : CU_MEM_ACCESS_FLAGS_PROT_NONE;
    return CUDA_SUCCESS;
  });
}

CUDA_EXPORT CUresult cuMemRetainAllocationHandle(CUmemGenericAllocationHandle* handle, void* address) {
  return call([&] {
    const auto range = runtime().memory().find(reinterpret_cast<uint64_t>(address));
    if (handle == nullptr || !range || range->kind != MemoryKind::mapped) return CUDA_ERROR_INVALID_VALUE;
    auto& physical = static_cast<PhysicalMemory&>(*range->owner);
    // If the handle has been released, the mapping still holds the memory: make a new handle.
    uint32_t count = physical.handle_count.load();
    while (count != 0 && !physical.handle_count.compare_exchange_weak(count, count + 1)) {
    }
    if (count != 0) {
      *handle = physical.handle;
      return CUDA_SUCCESS;
    }
    const Ref<PhysicalMemory> again = make_ref<PhysicalMemory>(physical.memory, physical.properties);
    again->handle = runtime().handles().add(again);
    if (again->handle == 0) return CUDA_ERROR_OUT_OF_MEMORY;
    *handle = again->handle;
    return CUDA_SUCCESS;
  });
}

CUDA_EXPORT CUresult cuMemGetAllocationPropertiesFromHandle(CUmemAllocationProp* properties,
                                                            CUmemGenericAllocationHandle handle) {
  return call([&] {
    const Ref<PhysicalMemory> physical = find_physical(handle);
    if (properties == nullptr || !physical) return CUDA_ERROR_INVALID_VALUE;
    *properties = physical->properties;
    return CUDA_SUCCESS;
  });
}

CUDA_EXPORT CUresult cuMemExportToShareableHandle(void* shareable, CUmemGenericAllocationHandle handle,
                                                  CUmemAllocationHandleType type, unsigned long long flags) {
  return call([&] {
    if (shareable == nullptr || flags != 0) return CUDA_ERROR_INVALID_VALUE;
    const Ref<PhysicalMemory> physical = find_physical(handle);
    if (!physical || (physical->properties.requestedHandleTypes & type) == 0) return CUDA_ERROR_INVALID_VALUE;
    SharedDevice& device = runtime().device(physical->properties.location.id)->shared();
    const int descriptor = device.export_memory(physical->memory, physical->properties.requestedHandleTypes);
    if (descriptor < 0) return CUDA_ERROR_OUT_OF_MEMORY;
    *static_cast<int*>(shareable) = descriptor;
    return CUDA_SUCCESS;
  });
}

CUDA_EXPORT CUresult cuMemImportFromShareableHandle(CUmemGenericAllocationHandle* handle, void* shareable,
                                                    CUmemAllocationHandleType type) {
  return call([&] {
    if (handle == nullptr) return CUDA_ERROR_INVALID_VALUE;
    if (type != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR) return CUDA_ERROR_NOT_SUPPORTED;
    const auto descriptor = static_cast<int>(reinterpret_cast<intptr_t>(shareable));
    const auto label = read_label(descriptor);
    if (!label) return CUDA_ERROR_INVALID_VALUE;
    CUmemAllocationProp properties{};
    properties.type = CU_MEM_ALLOCATION_TYPE_PINNED;
    properties.requestedHandleTypes = static_cast<CUmemAllocationHandleType>(label->handle_types);
    properties.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
    bool refused = false;
    for (const auto& device : runtime().devices()) {
      std::shared_ptr<Memory> memory = device->shared().import_memory(descriptor, &refused);
      if (refused) return CUDA_ERROR_OUT_OF_MEMORY;
      if (!memory) continue;
      properties.location.id = device->index();
      const Ref<PhysicalMemory> physical = make_ref<PhysicalMemory>(std::move(memory), properties);
      physical->handle = runtime().handles().add(physical);
      if (physical->handle == 0) return CUDA_ERROR_OUT_OF_MEMORY;
      *handle = physical->handle;
      return CUDA_SUCCESS;
    }
    return CUDA_ERROR_INVALID_VALUE;
  });
}
