// Memory pools, as the client knows them: names with attributes, since stream-ordered allocations come from the session's address
// space like all others.
#pragma once
#include <mutex>

#include "client/call.h"

namespace gpupool::client {

struct Pool : Object {
  int device = 0;
  int handle_types = 0;        // CUmemAllocationHandleType: other processes may have its memory
  uint64_t imported_from = 0;  // another process's, on this server (Session::server_id)
  std::mutex mutex;
  uint64_t release_threshold = 0;
  int reuse_follow_event = 1, reuse_opportunistic = 1, reuse_internal = 1;
};

// May other processes have what is allocated from the pool that is current on the device?
bool shares_current_pool(const Device& device);
// cuMemAllocAsync from this pool.
CUresult allocate_from(const Pool& pool, CUdeviceptr* address, size_t bytes, CUstream stream);

}  // namespace gpupool::client
