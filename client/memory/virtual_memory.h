// Physical memory (cuMemCreate) and its mappings, as the client knows them. Used by the virtual memory,
// sharing and multicast calls. Thread-safe.
#pragma once
#include <map>
#include <mutex>

#include "client/memory/shared_name.h"
#include "protocol/wire/sharing.h"

namespace gpupool::client {

// A physical allocation. Its handle is valid while `references` is not 0. The server also keeps the memory
// while it is mapped, because cuMemRetainAllocationHandle can revive the handle.
struct Memory : Object {
  CUmemAllocationProp properties{};  // as passed by the program
  uint64_t size = 0;
  bool multicast = false;  // a multicast object (client/api/multicast.cc)
  // cuMemCreate and cuMemRetainAllocationHandle calls without cuMemRelease; guarded by mappings().mutex.
  int references = 1;
  int mapped = 0;  // number of mappings; guarded by mappings().mutex
};

// All mappings, by address.
struct Mappings {
  struct Mapping {
    uint64_t size;
    uint64_t memory;
  };
  std::mutex mutex;
  std::map<uint64_t, Mapping> by_address;
};
Mappings& mappings();

// Returns null if the handle is not valid.
Memory* find_memory(CUmemGenericAllocationHandle handle);

// Asks the server for the name of the mapping that contains an allocation; fills in the allocation's place in
// it.
CUresult name_of_allocation(Session& session, const Allocation& about, SharedKind kind,
                            wire::SharedName* name);

// Imports memory that another process has shared, or this one unless wire::kRejectOwnMemory.
CUresult import_memory(Session& session, const wire::SharedName& name, uint32_t flags,
                       CUmemGenericAllocationHandle* handle);

// Opens another process's memory at an address of this one, for cuIpcOpenMemHandle and
// cuMemPoolImportPointer: maps the whole mapping and returns the address of the part that the name is about.
// Opening the same name again returns the same address and counts a reference.
CUresult open_shared(Session& session, const wire::SharedName& name, CUdeviceptr* address);
// Drops a reference. CUDA_ERROR_INVALID_VALUE: nothing of this kind was opened at the address. Work that uses
// the memory must be done.
CUresult close_shared(SharedKind kind, CUdeviceptr address);
bool is_opened(SharedKind kind, CUdeviceptr address);

}  // namespace gpupool::client
