// Host memory that the program has pinned: allocated by the driver API or registered with it. Purely local: pages are
// plain memory of this process; what being pinned changes is that asynchronous copies may read and write it later. Any
// thread.
#pragma once
#include <atomic>
#include <cstdint>
#include <map>
#include <mutex>
#include <optional>

#include "protocol/cuda/cuda_header.h"

namespace gpupool::client {

class Session;
struct Context;

// Converts an address of this process from the number that the protocol uses.
inline void* host_pointer(uint64_t address) { return reinterpret_cast<void*>(static_cast<uintptr_t>(address)); }

struct HostAllocation {
  uint64_t address = 0;
  uint64_t size = 0;
  unsigned flags = 0;
  bool registered = false;  // cuMemHostRegister: the memory is the program's
  uint64_t context = 0;
  uint64_t id = 0;
  // What the server maps too (id names it there): copies of this context's streams go straight to and from it.
  Session* shared_with = nullptr;
  uint32_t epoch = 0;       // of the context: a reset has taken it away from the server
  // Kernels: their address of it, as far as it is known. Of registered memory it is that of a copy (shadows.h). In the addresses of a
  // session (`home`) it is the program's own, once the server has memory there (`reached`).
  uint64_t device = 0;
  Session* home = nullptr;
  bool reached = false;
  bool used = false;        // asynchronous copies may be under way
  bool written = false;     // among them such that write it
};

class HostMemory {
 public:
  // Null when there is no memory.
  void* allocate(uint64_t bytes, unsigned flags, Context& context);
  // The same where the server can map it too. Null as well when it cannot, or an earlier command's error is in *result.
  void* allocate_shared(uint64_t bytes, unsigned flags, Context& context, CUresult* result);
  bool free(void* address);  // false: not the start of an allocation
  // For reach_host_memory().
  CUresult reach(uint64_t address, Context& context);
  // False: overlaps pinned memory.
  bool add_registered(void* address, uint64_t bytes, unsigned flags, uint64_t context);
  bool remove_registered(void* address);
  // Kernels' address of registered memory (shadows.h); 0: it has none any more.
  void set_device(uint64_t address, uint64_t device);
  std::optional<HostAllocation> find(uint64_t address) const;
  // The allocation that holds all of these bytes.
  std::optional<HostAllocation> holding(const void* address, uint64_t bytes) const;
  bool is_pinned(const void* address, uint64_t bytes) const { return holding(address, bytes).has_value(); }
  // Shared memory of this context that holds all of these bytes, for a copy that is noted unless it is waited for.
  std::optional<HostAllocation> use_shared(const void* address, uint64_t bytes, const Context& context, bool write, bool wait);
  // Is there memory that kernels write in place?
  bool any_shared() const { return shared_bytes_.load(std::memory_order_relaxed) != 0; }
  // May the device still write here, by a copy that was not waited for?
  bool is_written(const void* address) const;

 private:
  mutable std::mutex mutex_;
  std::mutex reaching_;
  std::map<uint64_t, HostAllocation> allocations_;
  std::atomic<uint64_t> shared_bytes_{0};
  uint64_t next_id_ = uint64_t{1} << 40;  // apart from the ids of device allocations
};

HostMemory& host_memory();

// A kernel of the context will be given this address, or one next to it: from now on mirrors.h has the memory, unless the server
// shares it or kernels have no address for it. Waits once for what is under way.
CUresult reach_host_memory(uint64_t address, Context& context);  // client/calls/host_memory.cc

}  // namespace gpupool::client
