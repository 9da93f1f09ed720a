// Memory pools, as the client knows them: names with attributes, since stream-ordered allocations come from the session's address
// space like all others.
#pragma once
#include <map>
#include <mutex>

#include "client/call.h"

namespace gpupool::client {

struct Pool : Object {
  int device = 0;
  int handle_types = 0;        // CUmemAllocationHandleType: other processes may have its memory
  uint64_t imported_from = 0;  // another process's, on this server (Session::server_id)
  uint64_t max_size = 0;       // CUmemPoolProps::maxSize; 0: no limit
  std::mutex mutex;
  std::map<int, CUmemAccess_flags> access;  // of other devices (cuMemPoolSetAccess)
  uint64_t release_threshold = 0;
  int reuse_follow_event = 1, reuse_opportunistic = 1, reuse_internal = 1;
  // Of its allocations that are not freed. What is freed goes back at once, so nothing more is reserved than that, in whole mappings.
  uint64_t used = 0, used_high = 0, reserved_high = 0;
  static uint64_t reserved(uint64_t used) { return (used + kReserve - 1) / kReserve * kReserve; }
  static constexpr uint64_t kReserve = 2u << 20;
  void count(int64_t bytes);
  void count_locked(int64_t bytes);         // with the mutex held
  bool count_within_limit(uint64_t bytes);  // false: the pool may not grow so far, and nothing was counted
};

// The pool that is current on the device; null: none can be made.
Pool* current_pool(const Device& device);
// Of memory that a pool counts (Allocation::pool), if the pool is there yet.
void count_in_pool(uint64_t pool, int64_t bytes);
// cuMemAllocAsync from this pool.
CUresult allocate_from(Pool& pool, CUdeviceptr* address, size_t bytes, CUstream stream);

}  // namespace gpupool::client
