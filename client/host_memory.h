// Host memory that the program has pinned: allocated by the driver API or registered with it. Purely local: pages are
// plain memory of this process; what being pinned changes is that asynchronous copies may read and write it later. Any
// thread.
#pragma once
#include <cstdint>
#include <map>
#include <mutex>
#include <optional>

namespace gpupool::client {

struct HostAllocation {
  uint64_t address = 0;
  uint64_t size = 0;
  unsigned flags = 0;
  bool registered = false;  // cuMemHostRegister: the memory is the program's
  uint64_t context = 0;
  uint64_t id = 0;
};

class HostMemory {
 public:
  // Null when there is no memory.
  void* allocate(uint64_t bytes, unsigned flags, uint64_t context);
  bool free(void* address);  // false: not the start of an allocation
  // False: overlaps pinned memory.
  bool add_registered(void* address, uint64_t bytes, unsigned flags, uint64_t context);
  bool remove_registered(void* address);
  std::optional<HostAllocation> find(uint64_t address) const;
  bool is_pinned(const void* address, uint64_t bytes) const;

 private:
  mutable std::mutex mutex_;
  std::map<uint64_t, HostAllocation> allocations_;
  uint64_t next_id_ = uint64_t{1} << 40;  // apart from the ids of device allocations
};

HostMemory& host_memory();

}  // namespace gpupool::client
