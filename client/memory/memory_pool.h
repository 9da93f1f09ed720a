// Memory pools as the program names them: a handle, and the memory behind it (pool_memory.h). Any thread.
#pragma once
#include <memory>

#include "client/memory/pool_memory.h"
#include "client/session/call.h"

namespace gpupool::client {

struct Pool : Object {
  int device = 0;
  int handle_types = 0;        // CUmemAllocationHandleType bits: how the pool can be exported
  uint64_t imported_from = 0;  // Session::server_id of the server that it was imported from; 0: not imported
  std::shared_ptr<PoolMemory> memory;
};

// Returns null if the handle table is full.
Pool* make_pool(Device& device, int handle_types, uint64_t max_size, uint64_t imported_from = 0);
// Returns the device's current pool (cuDeviceSetMemPool); null: none can be made.
Pool* current_pool(const Device& device);
// cuMemAllocAsync from this pool.
CUresult allocate_from(Pool& pool, CUdeviceptr* address, size_t bytes, CUstream stream);

}  // namespace gpupool::client
