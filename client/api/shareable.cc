// Memory for other processes as a file descriptor or a fabric handle: cuMemExportToShareableHandle and its
// counterparts, also for memory pools.
//
// The program gets a name (shared_name.h) in either form. A name keeps nothing alive: unlike with NVIDIA's
// descriptors, importing one after the memory was released fails.
#include "client/memory/memory_pool.h"
#include "client/memory/virtual_memory.h"
#include "client/session/replies.h"
#include "protocol/driver/exports.h"
#include "protocol/wire/sharing.h"

using namespace gpupool;
using namespace gpupool::client;

namespace {

constexpr int kDescriptor = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;

CUresult give(const wire::SharedName& name, int type, void* to) {
  if (type != kDescriptor) {
    std::memcpy(to, &name, sizeof name);
    return CUDA_SUCCESS;
  }
  const int file = write_name_file(name);
  if (file < 0) return CUDA_ERROR_OPERATING_SYSTEM;
  std::memcpy(to, &file, sizeof file);
  return CUDA_SUCCESS;
}

CUresult take(void* from, int type, SharedKind kind, wire::SharedName* name, Session** session) {
  if (type != kDescriptor && type != kFabricHandle) return CUDA_ERROR_NOT_SUPPORTED;
  wire::SharedName bytes{};
  if (type == kDescriptor) {
    if (!read_name_file(static_cast<int>(reinterpret_cast<intptr_t>(from)), &bytes))
      return CUDA_ERROR_INVALID_VALUE;
  } else if (!from) {
    return CUDA_ERROR_INVALID_VALUE;
  } else {
    std::memcpy(&bytes, from, sizeof bytes);
  }
  return read_name(&bytes, kind, name, session);
}

}  // namespace

CUDA_EXPORT CUresult cuMemExportToShareableHandle(void* shareable, CUmemGenericAllocationHandle handle,
                                                  CUmemAllocationHandleType type, unsigned long long flags) {
  return guarded([&]() -> CUresult {
    if (const CUresult result = ready(); result != CUDA_SUCCESS) return result;
    Memory* const memory = find_memory(handle);
    if (!shareable || !memory || flags != 0) return CUDA_ERROR_INVALID_VALUE;
    if ((memory->properties.requestedHandleTypes & type) == 0 || (type & (type - 1)) != 0)
      return CUDA_ERROR_INVALID_VALUE;
    wire::Buffer reply;
    const CUresult result =
        memory->session->call(wire::Command::export_memory, nullptr, wire::ExportMemory{handle, 0}, reply);
    if (result != CUDA_SUCCESS) return result;
    note_shared_memory();
    wire::SharedName name;
    if (!read_shared_name(reply, &name)) return Session::failure();
    name.kind = static_cast<uint32_t>(SharedKind::allocation);
    name.size = memory->size;
    return give(name, type, shareable);
  });
}

CUDA_EXPORT CUresult cuMemImportFromShareableHandle(CUmemGenericAllocationHandle* handle, void* shareable,
                                                    CUmemAllocationHandleType type) {
  return guarded([&]() -> CUresult {
    if (const CUresult result = ready(); result != CUDA_SUCCESS) return result;
    if (!handle) return CUDA_ERROR_INVALID_VALUE;
    wire::SharedName name{};
    Session* session = nullptr;
    if (const CUresult result = take(shareable, type, SharedKind::allocation, &name, &session);
        result != CUDA_SUCCESS)
      return result;
    return import_memory(*session, name, 0, handle);
  });
}

CUDA_EXPORT CUresult cuMemPoolExportToShareableHandle(void* shareable, CUmemoryPool pool,
                                                      CUmemAllocationHandleType type,
                                                      unsigned long long flags) {
  return guarded([&]() -> CUresult {
    if (const CUresult result = ready(); result != CUDA_SUCCESS) return result;
    const auto* const known = handles().find_as<Pool>(Kind::memory_pool, cuda::handle_bits(pool));
    if (!shareable || !known || flags != 0) return CUDA_ERROR_INVALID_VALUE;
    if (known->imported_from != 0 || (known->handle_types & type) == 0 || (type & (type - 1)) != 0)
      return CUDA_ERROR_INVALID_VALUE;
    wire::SharedName name{};
    name.magic = wire::kSharedName;
    name.kind = static_cast<uint32_t>(SharedKind::pool);
    name.server = known->session->server_id();
    name.offset = static_cast<uint64_t>(find_device(known->device)->server_ordinal);
    return give(name, type, shareable);
  });
}

CUDA_EXPORT CUresult cuMemPoolImportFromShareableHandle(CUmemoryPool* pool, void* shareable,
                                                        CUmemAllocationHandleType type,
                                                        unsigned long long flags) {
  return guarded([&]() -> CUresult {
    if (const CUresult result = ready(); result != CUDA_SUCCESS) return result;
    if (!pool || flags != 0) return CUDA_ERROR_INVALID_VALUE;
    wire::SharedName name{};
    Session* session = nullptr;
    if (const CUresult result = take(shareable, type, SharedKind::pool, &name, &session);
        result != CUDA_SUCCESS)
      return result;
    for (const auto& device : devices()) {
      if (device->session != session || static_cast<uint64_t>(device->server_ordinal) != name.offset)
        continue;
      const Pool* const imported = make_pool(*device, 0, 0, name.server);
      if (!imported) return CUDA_ERROR_OUT_OF_MEMORY;
      *pool = cuda::handle_from_bits<CUmemoryPool>(imported->handle);
      return CUDA_SUCCESS;
    }
    return CUDA_ERROR_INVALID_DEVICE;
  });
}

CUDA_EXPORT CUresult cuMemPoolExportPointer(CUmemPoolPtrExportData* data, CUdeviceptr address) {
  return guarded([&]() -> CUresult {
    if (const CUresult result = ready(); result != CUDA_SUCCESS) return result;
    Session* const session = session_of(address, current_session());
    const auto about = session ? session->addresses().find(address) : std::nullopt;
    if (!data || !about || about->foreign || about->origin != Allocation::Origin::shared_pool)
      return CUDA_ERROR_INVALID_VALUE;
    wire::SharedName name{};
    const CUresult result = name_of_allocation(*session, *about, SharedKind::pool_pointer, &name);
    if (result == CUDA_SUCCESS) write_name(name, data);
    return result;
  });
}

CUDA_EXPORT CUresult cuMemPoolImportPointer(CUdeviceptr* address, CUmemoryPool pool,
                                            CUmemPoolPtrExportData* data) {
  return guarded([&]() -> CUresult {
    if (const CUresult result = ready(); result != CUDA_SUCCESS) return result;
    const auto* const known = handles().find_as<Pool>(Kind::memory_pool, cuda::handle_bits(pool));
    if (!address || !data || !known || known->imported_from == 0) return CUDA_ERROR_INVALID_VALUE;
    wire::SharedName name{};
    Session* session = nullptr;
    if (const CUresult result = read_name(data, SharedKind::pool_pointer, &name, &session);
        result != CUDA_SUCCESS)
      return result;
    return name.server == known->imported_from ? open_shared(*session, name, address)
                                               : CUDA_ERROR_INVALID_VALUE;
  });
}
