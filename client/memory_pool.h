// Memory pools as the program names them: a handle, and the memory behind it (pool_memory.h).
#pragma once
#include <memory>

#include "client/call.h"
#include "client/pool_memory.h"

namespace gpupool::client {

struct Pool : Object {
  int device = 0;
  int handle_types = 0;        // CUmemAllocationHandleType: other processes may have its memory
  uint64_t imported_from = 0;  // another process's, on this server (Session::server_id)
  std::shared_ptr<PoolMemory> memory;
};

// Null if there is no room for a handle.
Pool* make_pool(Device& device, int handle_types, uint64_t max_size, uint64_t imported_from = 0);
// The pool that is current on the device; null: none can be made.
Pool* current_pool(const Device& device);
// cuMemAllocAsync from this pool.
CUresult allocate_from(Pool& pool, CUdeviceptr* address, size_t bytes, CUstream stream);

}  // namespace gpupool::client
