// Virtual memory management: reservations are cut from the session's range here; memory and mappings are the worker's.
#include "client/call.h"
#include "protocol/cuda/exports.h"

using namespace gpupool;
using namespace gpupool::client;

namespace {

struct Memory : Object {
  CUmemAllocationProp properties{};  // as the program gave them
  uint64_t size = 0;
  std::atomic<int> references{1};    // cuMemCreate and cuMemRetainAllocationHandle
};

// Which memory lies behind which mapped addresses.
struct Mappings {
  struct Mapping {
    uint64_t size;
    uint64_t memory;
  };
  std::mutex mutex;
  std::map<uint64_t, Mapping> by_address;
};
Mappings& mappings() {
  static Mappings* const only = new Mappings;
  return *only;
}

CUresult to_server_location(Session& session, CUmemLocation* location) {
  if (location->type != CU_MEM_LOCATION_TYPE_DEVICE) return CUDA_ERROR_NOT_SUPPORTED;
  const Device* device = session.device(location->id);
  if (!device) return CUDA_ERROR_INVALID_DEVICE;
  location->id = device->server_ordinal;
  return CUDA_SUCCESS;
}

uint64_t granularity_of(Session& session, int device) {
  const Device* found = session.device(device);
  return found ? found->granularity : 0;
}

}  // namespace

CUDA_EXPORT CUresult cuMemGetAllocationGranularity(size_t* granularity, const CUmemAllocationProp* properties,
                                                   CUmemAllocationGranularity_flags option) {
  Session* session = nullptr;
  if (const CUresult result = ready(&session); result != CUDA_SUCCESS) return result;
  if (!granularity || !properties) return CUDA_ERROR_INVALID_VALUE;
  if (properties->location.type != CU_MEM_LOCATION_TYPE_DEVICE) return CUDA_ERROR_NOT_SUPPORTED;
  *granularity = granularity_of(*session, properties->location.id);
  return *granularity ? CUDA_SUCCESS : CUDA_ERROR_INVALID_DEVICE;
}

CUDA_EXPORT CUresult cuMemAddressReserve(CUdeviceptr* address, size_t size, size_t alignment, CUdeviceptr wished,
                                         unsigned long long flags) {
  return guarded([&]() -> CUresult {
    Session* session = nullptr;
    if (const CUresult result = ready(&session); result != CUDA_SUCCESS) return result;
    const uint64_t granularity = granularity_of(*session, 0);
    if (!address || size == 0 || size % granularity != 0 || flags != 0) return CUDA_ERROR_INVALID_VALUE;
    if (alignment & (alignment - 1)) return CUDA_ERROR_INVALID_VALUE;
    const auto at = session->addresses().reserve(size, alignment, wished);
    if (!at) return CUDA_ERROR_OUT_OF_MEMORY;
    *address = *at;
    return CUDA_SUCCESS;
  });
}

CUDA_EXPORT CUresult cuMemAddressFree(CUdeviceptr address, size_t size) {
  return guarded([&]() -> CUresult {
    Session* session = nullptr;
    if (const CUresult result = ready(&session); result != CUDA_SUCCESS) return result;
    {
      std::lock_guard lock(mappings().mutex);
      const auto mapped = mappings().by_address.lower_bound(address);
      if (mapped != mappings().by_address.end() && mapped->first < address + size) return CUDA_ERROR_INVALID_VALUE;
    }
    return session->addresses().unreserve(address, size) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
  });
}

CUDA_EXPORT CUresult cuMemCreate(CUmemGenericAllocationHandle* handle, size_t size, const CUmemAllocationProp* properties,
                                 unsigned long long flags) {
  return guarded([&]() -> CUresult {
    Session* session = nullptr;
    if (const CUresult result = ready(&session); result != CUDA_SUCCESS) return result;
    if (!handle || !properties || size == 0) return CUDA_ERROR_INVALID_VALUE;
    if (properties->requestedHandleTypes != CU_MEM_HANDLE_TYPE_NONE) return CUDA_ERROR_NOT_SUPPORTED;
    CUmemAllocationProp on_server = *properties;
    if (const CUresult result = to_server_location(*session, &on_server.location); result != CUDA_SUCCESS) return result;
    on_server.win32HandleMetaData = nullptr;
    auto made = std::make_unique<Memory>();
    made->properties = *properties;
    made->size = size;
    const uint64_t minted = session->handles().mint(Kind::memory, std::move(made));
    if (minted == 0) return CUDA_ERROR_OUT_OF_MEMORY;
    wire::Buffer reply;
    const CUresult result = session->call(rows::cuMemCreate::kId, nullptr, [&](wire::Writer& writer) {
      writer.put(minted);
      writer.put(size);
      writer.put<uint8_t>(1);
      writer.put(on_server);
      writer.put(flags);
    }, reply);
    if (result != CUDA_SUCCESS) session->handles().retire(minted);
    else *handle = minted;
    return result;
  });
}

CUDA_EXPORT CUresult cuMemRelease(CUmemGenericAllocationHandle handle) {
  return guarded([&]() -> CUresult {
    Session* session = nullptr;
    if (const CUresult result = ready(&session); result != CUDA_SUCCESS) return result;
    auto* memory = session->handles().find_as<Memory>(Kind::memory, handle);
    if (!memory) return CUDA_ERROR_INVALID_VALUE;
    if (memory->references.fetch_sub(1) > 1) return CUDA_SUCCESS;
    return rows::cuMemRelease::forward(handle);
  });
}

CUDA_EXPORT CUresult cuMemMap(CUdeviceptr address, size_t size, size_t offset, CUmemGenericAllocationHandle handle,
                              unsigned long long flags) {
  return guarded([&]() -> CUresult {
    Session* session = nullptr;
    if (const CUresult result = ready(&session); result != CUDA_SUCCESS) return result;
    auto* memory = session->handles().find_as<Memory>(Kind::memory, handle);
    if (!memory) return CUDA_ERROR_INVALID_VALUE;
    if (size == 0 || offset > memory->size || size > memory->size - offset) return CUDA_ERROR_INVALID_VALUE;
    if ((address | size | offset) % granularity_of(*session, 0) != 0 || flags != 0) return CUDA_ERROR_INVALID_VALUE;
    if (!session->addresses().is_reserved(address, size)) return CUDA_ERROR_INVALID_VALUE;
    {
      std::lock_guard lock(mappings().mutex);
      auto& all = mappings().by_address;
      const auto next = all.lower_bound(address);
      if (next != all.end() && next->first < address + size) return CUDA_ERROR_INVALID_VALUE;
      if (next != all.begin() && std::prev(next)->first + std::prev(next)->second.size > address) {
        return CUDA_ERROR_INVALID_VALUE;
      }
      all[address] = {size, handle};
    }
    const CUresult result = rows::cuMemMap::forward(address, size, offset, handle, flags);
    if (result != CUDA_SUCCESS) {
      std::lock_guard lock(mappings().mutex);
      mappings().by_address.erase(address);
    }
    return result;
  });
}

CUDA_EXPORT CUresult cuMemUnmap(CUdeviceptr address, size_t size) {
  return guarded([&]() -> CUresult {
    const CUresult result = rows::cuMemUnmap::forward(address, size);
    if (result != CUDA_SUCCESS) return result;
    std::lock_guard lock(mappings().mutex);
    auto& all = mappings().by_address;
    all.erase(all.lower_bound(address), all.lower_bound(address + size));
    return result;
  });
}

CUDA_EXPORT CUresult cuMemSetAccess(CUdeviceptr address, size_t size, const CUmemAccessDesc* descriptions, size_t count) {
  return guarded([&]() -> CUresult {
    Session* session = nullptr;
    if (const CUresult result = ready(&session); result != CUDA_SUCCESS) return result;
    if (!descriptions || count == 0 || count > session->devices().size()) return CUDA_ERROR_INVALID_VALUE;
    std::vector<CUmemAccessDesc> on_server(descriptions, descriptions + count);
    for (auto& description : on_server) {
      if (const CUresult result = to_server_location(*session, &description.location); result != CUDA_SUCCESS) return result;
    }
    return rows::cuMemSetAccess::forward(address, size, on_server.data(), count);
  });
}

CUDA_EXPORT CUresult cuMemGetAllocationPropertiesFromHandle(CUmemAllocationProp* properties,
                                                            CUmemGenericAllocationHandle handle) {
  Session* session = nullptr;
  if (const CUresult result = ready(&session); result != CUDA_SUCCESS) return result;
  const auto* memory = session->handles().find_as<Memory>(Kind::memory, handle);
  if (!memory || !properties) return CUDA_ERROR_INVALID_VALUE;
  *properties = memory->properties;
  return CUDA_SUCCESS;
}

CUDA_EXPORT CUresult cuMemRetainAllocationHandle(CUmemGenericAllocationHandle* handle, void* pointer) {
  return guarded([&]() -> CUresult {
    Session* session = nullptr;
    if (const CUresult result = ready(&session); result != CUDA_SUCCESS) return result;
    if (!handle) return CUDA_ERROR_INVALID_VALUE;
    const uint64_t address = reinterpret_cast<uintptr_t>(pointer);
    std::lock_guard lock(mappings().mutex);
    auto found = mappings().by_address.upper_bound(address);
    if (found == mappings().by_address.begin()) return CUDA_ERROR_INVALID_VALUE;
    --found;
    if (address - found->first >= found->second.size) return CUDA_ERROR_INVALID_VALUE;
    auto* memory = session->handles().find_as<Memory>(Kind::memory, found->second.memory);
    if (!memory) return CUDA_ERROR_NOT_SUPPORTED;  // released while mapped: its handle cannot be revived yet
    memory->references.fetch_add(1);
    *handle = found->second.memory;
    return CUDA_SUCCESS;
  });
}
