// Virtual memory management: reservations come from the session's address range; memory and mappings are the
// worker's.
#include "client/memory/virtual_memory.h"

#include "client/memory/idle_memory.h"
#include "client/session/replies.h"
#include "protocol/driver/exports.h"
#include "protocol/wire/sharing.h"

using namespace gpupool;
using namespace gpupool::client;

namespace gpupool::client {

Mappings& mappings() {
  static Mappings* const only = new Mappings;
  return *only;
}

Memory* find_memory(CUmemGenericAllocationHandle handle) {
  auto* memory = handles().find_as<Memory>(Kind::memory, handle);
  const std::lock_guard lock(mappings().mutex);
  return memory && memory->references > 0 ? memory : nullptr;
}

CUresult name_of_allocation(Session& session, const Allocation& about, SharedKind kind,
                            wire::SharedName* name) {
  auto* const context = handles().find_as<Context>(Kind::context, about.context);
  wire::Buffer reply;
  const CUresult result =
      session.call(wire::Command::export_memory, context, wire::ExportMemory{0, about.address}, reply);
  if (result != CUDA_SUCCESS) return result;
  note_shared_memory();
  if (!read_shared_name(reply, name)) return Session::failure();
  name->kind = static_cast<uint32_t>(kind);
  name->size = about.size;
  return CUDA_SUCCESS;
}

CUresult import_memory(Session& session, const wire::SharedName& name, uint32_t flags,
                       CUmemGenericAllocationHandle* handle) {
  auto made = std::make_unique<Memory>();
  Memory& memory = *made;
  const uint64_t minted = session.mint(Kind::memory, std::move(made));
  if (minted == 0) return CUDA_ERROR_OUT_OF_MEMORY;
  wire::Buffer reply;
  note_shared_memory();
  const CUresult result =
      session.call(wire::Command::import_memory, nullptr, wire::ImportMemory{minted, name, flags, 0}, reply);
  if (result != CUDA_SUCCESS) {
    handles().retire(minted);
    return result;
  }
  wire::ImportedMemory imported;
  if (!read_imported_memory(reply, &imported)) {
    handles().retire(minted);
    return Session::failure();
  }
  memory.size = imported.size;
  memory.properties.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  memory.properties.requestedHandleTypes = static_cast<CUmemAllocationHandleType>(imported.handle_types);
  memory.multicast = imported.device == wire::kNoDevice;
  for (const auto& device : devices()) {
    if (device->session != &session || (!memory.multicast && device->server_ordinal != imported.device))
      continue;
    memory.properties.location = {CU_MEM_LOCATION_TYPE_DEVICE, device->ordinal};
    *handle = minted;
    return CUDA_SUCCESS;
  }
  (void)rows::cuMemRelease::forward(minted);  // it is on a device that CUDA_VISIBLE_DEVICES hides
  return CUDA_ERROR_INVALID_DEVICE;
}

}  // namespace gpupool::client

namespace {

constexpr unsigned kUsageHwDecompress = 2;  // CU_MEM_CREATE_USAGE_HW_DECOMPRESS, CUDA 12.6

// Replaces the location's device ordinal by the server's. *device: the device.
CUresult to_server_location(CUmemLocation* location, const Device** device) {
  if (location->type != CU_MEM_LOCATION_TYPE_DEVICE) return CUDA_ERROR_NOT_SUPPORTED;
  *device = find_device(location->id);
  if (!*device) return CUDA_ERROR_INVALID_DEVICE;
  location->id = (*device)->server_ordinal;
  return CUDA_SUCCESS;
}

// Returns the session in whose range the program has reserved these addresses; null: none.
Session* reserved_by(uint64_t address, uint64_t bytes) {
  Session* session = session_of(address, current_session());
  return session && session->addresses().is_reserved(address, bytes) ? session : nullptr;
}

}  // namespace

CUDA_EXPORT CUresult cuMemGetAllocationGranularity(size_t* granularity, const CUmemAllocationProp* properties,
                                                   CUmemAllocationGranularity_flags option) {
  if (const CUresult result = ready(); result != CUDA_SUCCESS) return result;
  if (!granularity || !properties || option < CU_MEM_ALLOC_GRANULARITY_MINIMUM ||
      option > CU_MEM_ALLOC_GRANULARITY_RECOMMENDED)
    return CUDA_ERROR_INVALID_VALUE;
  if (properties->location.type != CU_MEM_LOCATION_TYPE_DEVICE) return CUDA_ERROR_NOT_SUPPORTED;
  const Device* device = find_device(properties->location.id);
  if (!device) return CUDA_ERROR_INVALID_DEVICE;
  *granularity = device->granularity;
  return CUDA_SUCCESS;
}

CUDA_EXPORT CUresult cuMemAddressReserve(CUdeviceptr* address, size_t size, size_t alignment,
                                         CUdeviceptr requested, unsigned long long flags) {
  return guarded([&]() -> CUresult {
    if (const CUresult result = ready(); result != CUDA_SUCCESS) return result;
    // Addresses belong to a server, and CUDA does not say which memory will be mapped: assume that of the
    // current device.
    Session* session = current_session();
    if (!session) session = sessions().front().get();
    if (!address || size == 0 || size % session->addresses().granularity() != 0 || flags != 0)
      return CUDA_ERROR_INVALID_VALUE;
    if (alignment & (alignment - 1)) return CUDA_ERROR_INVALID_VALUE;
    const auto at = session->addresses().reserve(size, alignment, requested);
    if (!at) return CUDA_ERROR_OUT_OF_MEMORY;
    *address = *at;
    return CUDA_SUCCESS;
  });
}

CUDA_EXPORT CUresult cuMemAddressFree(CUdeviceptr address, size_t size) {
  return guarded([&]() -> CUresult {
    if (const CUresult result = ready(); result != CUDA_SUCCESS) return result;
    {
      std::lock_guard lock(mappings().mutex);
      const auto mapped = mappings().by_address.lower_bound(address);
      if (mapped != mappings().by_address.end() && mapped->first < address + size)
        return CUDA_ERROR_INVALID_VALUE;
    }
    Session* session = reserved_by(address, size);
    return session && session->addresses().unreserve(address, size) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
  });
}

CUDA_EXPORT CUresult cuMemCreate(CUmemGenericAllocationHandle* handle, size_t size,
                                 const CUmemAllocationProp* properties, unsigned long long flags) {
  return guarded([&]() -> CUresult {
    if (const CUresult result = ready(); result != CUDA_SUCCESS) return result;
    if (!handle || !properties || size == 0) return CUDA_ERROR_INVALID_VALUE;
    if ((properties->requestedHandleTypes & ~kShareableHandleTypes) != 0) return CUDA_ERROR_NOT_SUPPORTED;
    CUmemAllocationProp on_server = *properties;
    const Device* device = nullptr;
    if (const CUresult result = to_server_location(&on_server.location, &device); result != CUDA_SUCCESS)
      return result;
    const auto shares =
        device->attributes.find(CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED);
    const bool can_share = shares != device->attributes.end() && shares->second != 0;
    if (properties->requestedHandleTypes != CU_MEM_HANDLE_TYPE_NONE && !can_share)
      return CUDA_ERROR_NOT_SUPPORTED;
    Session* const session = device->session;
    on_server.win32HandleMetaData = nullptr;
    auto made = std::make_unique<Memory>();
    made->properties = *properties;
    made->size = size;
    const uint64_t minted = session->mint(Kind::memory, std::move(made));
    if (minted == 0) return CUDA_ERROR_OUT_OF_MEMORY;
    const auto create = [&] {
      wire::Buffer reply;
      return session->call(
          rows::cuMemCreate::kId, nullptr,
          [&](wire::Writer& writer) {
            writer.put(minted);
            writer.put(size);
            writer.put<uint8_t>(1);
            writer.put(on_server);
            writer.put(flags);
          },
          reply);
    };
    CUresult result = create();
    if (result == CUDA_ERROR_OUT_OF_MEMORY && give_back_idle(*session, *device)) result = create();
    if (result != CUDA_SUCCESS)
      handles().retire(minted);
    else
      *handle = minted;
    return result;
  });
}

CUDA_EXPORT CUresult cuMemRelease(CUmemGenericAllocationHandle handle) {
  return guarded([&]() -> CUresult {
    if (const CUresult result = ready(); result != CUDA_SUCCESS) return result;
    auto* memory = handles().find_as<Memory>(Kind::memory, handle);
    if (!memory) return CUDA_ERROR_INVALID_VALUE;
    {
      std::lock_guard lock(mappings().mutex);
      if (memory->references == 0) return CUDA_ERROR_INVALID_VALUE;
      if (--memory->references != 0 || memory->mapped != 0) return CUDA_SUCCESS;
    }
    return rows::cuMemRelease::forward(handle);
  });
}

CUDA_EXPORT CUresult cuMemMap(CUdeviceptr address, size_t size, size_t offset,
                              CUmemGenericAllocationHandle handle, unsigned long long flags) {
  return guarded([&]() -> CUresult {
    if (const CUresult result = ready(); result != CUDA_SUCCESS) return result;
    Memory* const memory = find_memory(handle);
    if (!memory) return CUDA_ERROR_INVALID_VALUE;
    if (size == 0 || offset > memory->size || size > memory->size - offset) return CUDA_ERROR_INVALID_VALUE;
    Session* const session = reserved_by(address, size);
    if (!session || flags != 0) return CUDA_ERROR_INVALID_VALUE;
    if ((address | size | offset) % session->addresses().granularity() != 0) return CUDA_ERROR_INVALID_VALUE;
    if (memory->session != session) return CUDA_ERROR_NOT_SUPPORTED;  // memory of another server
    {
      std::lock_guard lock(mappings().mutex);
      auto& all = mappings().by_address;
      const auto next = all.lower_bound(address);
      if (next != all.end() && next->first < address + size) return CUDA_ERROR_INVALID_VALUE;
      if (next != all.begin() && std::prev(next)->first + std::prev(next)->second.size > address) {
        return CUDA_ERROR_INVALID_VALUE;
      }
      all[address] = {size, handle};
      ++memory->mapped;
    }
    const CUresult result = rows::cuMemMap::forward(address, size, offset, handle, flags);
    if (result != CUDA_SUCCESS) {
      std::lock_guard lock(mappings().mutex);
      mappings().by_address.erase(address);
      --memory->mapped;
      return result;
    }
    Allocation about;
    about.address = address;
    about.size = size;
    about.device = find_device(memory->properties.location.id);
    about.handle_types = memory->properties.requestedHandleTypes;
    about.decompressable = (memory->properties.allocFlags.usage & kUsageHwDecompress) != 0;
    session->addresses().add_foreign(about);
    return result;
  });
}

CUDA_EXPORT CUresult cuMemUnmap(CUdeviceptr address, size_t size) {
  return guarded([&]() -> CUresult {
    if (const CUresult result = ready(); result != CUDA_SUCCESS) return result;
    Session* const session = session_of(address, current_session());
    if (!session) return CUDA_ERROR_INVALID_VALUE;
    const CUresult result = rows::cuMemUnmap::at({session}, {address, size});
    if (result != CUDA_SUCCESS) return result;
    std::vector<uint64_t> released;  // released earlier and now unmapped everywhere
    {
      std::lock_guard lock(mappings().mutex);
      auto& all = mappings().by_address;
      for (auto mapping = all.lower_bound(address);
           mapping != all.end() && mapping->first < address + size;) {
        session->addresses().forget_foreign(mapping->first);
        auto* memory = handles().find_as<Memory>(Kind::memory, mapping->second.memory);
        if (memory && --memory->mapped == 0 && memory->references == 0)
          released.push_back(mapping->second.memory);
        mapping = all.erase(mapping);
      }
    }
    for (const uint64_t memory : released) (void)rows::cuMemRelease::forward(memory);
    return result;
  });
}

CUDA_EXPORT CUresult cuMemSetAccess(CUdeviceptr address, size_t size, const CUmemAccessDesc* descriptions,
                                    size_t count) {
  return guarded([&]() -> CUresult {
    if (const CUresult result = ready(); result != CUDA_SUCCESS) return result;
    if (!descriptions || count == 0 || count > devices().size()) return CUDA_ERROR_INVALID_VALUE;
    Session* const session = session_of(address, current_session());
    if (!session) return CUDA_ERROR_INVALID_VALUE;
    std::vector<CUmemAccessDesc> on_server(descriptions, descriptions + count);
    for (auto& description : on_server) {
      const Device* device = nullptr;
      const CUresult result = to_server_location(&description.location, &device);
      if (result != CUDA_SUCCESS) return result;
      // Servers cannot access each other's memory.
      if (device->session != session) return CUDA_ERROR_INVALID_DEVICE;
    }
    return rows::cuMemSetAccess::at({session}, {address, size, on_server.data(), count});
  });
}

CUDA_EXPORT CUresult cuMemGetAccess(unsigned long long* flags, const CUmemLocation* location,
                                    CUdeviceptr address) {
  return guarded([&]() -> CUresult {
    if (const CUresult result = ready(); result != CUDA_SUCCESS) return result;
    Session* const session = session_of(address, current_session());
    if (!flags || !location || !session) return CUDA_ERROR_INVALID_VALUE;
    CUmemLocation on_server = *location;
    const Device* device = nullptr;
    if (const CUresult result = to_server_location(&on_server, &device); result != CUDA_SUCCESS)
      return result;
    if (device->session == session) return rows::cuMemGetAccess::at({session}, {flags, &on_server, address});
    *flags = CU_MEM_ACCESS_FLAGS_PROT_NONE;
    return CUDA_SUCCESS;
  });
}

CUDA_EXPORT CUresult cuMemRetainAllocationHandle(CUmemGenericAllocationHandle* handle, void* pointer) {
  return guarded([&]() -> CUresult {
    if (const CUresult result = ready(); result != CUDA_SUCCESS) return result;
    if (!handle) return CUDA_ERROR_INVALID_VALUE;
    const uint64_t address = reinterpret_cast<uintptr_t>(pointer);
    std::lock_guard lock(mappings().mutex);
    auto found = mappings().by_address.upper_bound(address);
    if (found == mappings().by_address.begin()) return CUDA_ERROR_INVALID_VALUE;
    --found;
    if (address - found->first >= found->second.size) return CUDA_ERROR_INVALID_VALUE;
    auto* memory = handles().find_as<Memory>(Kind::memory, found->second.memory);
    if (!memory) return CUDA_ERROR_INVALID_VALUE;
    ++memory->references;  // also revives a handle that the program had released
    *handle = found->second.memory;
    return CUDA_SUCCESS;
  });
}
