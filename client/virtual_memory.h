// Physical memory (cuMemCreate) and where it is mapped, as the client knows it. Any thread.
#pragma once
#include <map>
#include <mutex>

#include "client/shared_name.h"
#include "protocol/wire/sharing.h"

namespace gpupool::client {

// Its handle is good while `references` is not 0. The server's lives as long as it is mapped, too, since
// cuMemRetainAllocationHandle brings it back.
struct Memory : Object {
  CUmemAllocationProp properties{};  // as the program gave them
  uint64_t size = 0;
  bool multicast = false;            // a multicast object (calls/multicast.cc)
  int references = 1;                // this and the next under mappings().mutex: cuMemCreate, cuMemRetainAllocationHandle
  int mapped = 0;                    // times
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
Mappings& mappings();

// Null: no such handle is good.
Memory* find_memory(CUmemGenericAllocationHandle handle);

// The name under which other processes get the mapping that an allocation lies in, and the allocation in it.
CUresult name_of_allocation(Session& session, const Allocation& about, SharedKind kind, wire::SharedName* name);

// A handle of memory that another process, or (unless wire::kOfOthersOnly) this one, has shared.
CUresult import_memory(Session& session, const wire::SharedName& name, uint32_t flags, CUmemGenericAllocationHandle* handle);

// Memory of another process at an address of this one, as cuIpcOpenMemHandle and cuMemPoolImportPointer give it: mapped as a whole,
// the address being that of the part which the name is about. The same name again gives the same address, and counts.
CUresult open_shared(Session& session, const wire::SharedName& name, CUdeviceptr* address);
// CUDA_ERROR_INVALID_VALUE: nothing of this kind was opened there. Work that uses it must be done.
CUresult close_shared(SharedKind kind, CUdeviceptr address);
bool is_opened(SharedKind kind, CUdeviceptr address);

}  // namespace gpupool::client
