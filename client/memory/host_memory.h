// Pinned host memory: allocated by the driver API, or registered with it. The pages are ordinary memory of
// this process, or memory that a local server maps too; being pinned means that asynchronous copies may
// access them later. Used by the calls that allocate, register and copy. Thread-safe.
#pragma once
#include <atomic>
#include <cstdint>
#include <map>
#include <mutex>
#include <optional>

#include "protocol/driver/cuda_header.h"

namespace gpupool::client {

class Session;
struct Context;

// Converts an address of this process from the number that the protocol uses.
inline void* host_pointer(uint64_t address) {
  return reinterpret_cast<void*>(static_cast<uintptr_t>(address));
}

struct HostAllocation {
  uint64_t address = 0;
  uint64_t size = 0;
  unsigned flags = 0;
  bool registered = false;  // by cuMemHostRegister: the program owns the memory
  uint64_t context = 0;
  uint64_t id = 0;
  // Session whose server maps the memory too, under the name `id`; copies in streams of this context access
  // it directly.
  Session* shared_with = nullptr;
  uint32_t epoch = 0;  // context's epoch at allocation; a reset releases the memory on the server
  // Kernels' address for it; 0: none or not known. Registered memory: address of the device copy
  // (compared_copies.h).
  // Memory in a session's range (`home`): equal to `address`, usable once the server has memory there
  // (`reached`).
  uint64_t device = 0;
  Session* home = nullptr;
  bool reached = false;
  bool used = false;     // asynchronous copies may be under way
  bool written = false;  // asynchronous copies that write it may be under way
};

class HostMemory {
 public:
  // Returns null if memory is exhausted.
  void* allocate(uint64_t bytes, unsigned flags, Context& context);
  // The same, as memory that the server maps too. Also returns null if that is impossible, or with the error
  // of an earlier command in *result.
  void* allocate_shared(uint64_t bytes, unsigned flags, Context& context, CUresult* result);
  bool free(void* address);  // false: no allocation starts there
  // Implements reach_host_memory().
  CUresult reach(uint64_t address, Context& context);
  // Returns false if the range overlaps pinned memory.
  bool add_registered(void* address, uint64_t bytes, unsigned flags, uint64_t context);
  bool remove_registered(void* address);
  // Sets the kernels' address of registered memory (compared_copies.h); 0: it no longer has one.
  void set_device(uint64_t address, uint64_t device);
  std::optional<HostAllocation> find(uint64_t address) const;
  // Returns the allocation that contains all of these bytes.
  std::optional<HostAllocation> holding(const void* address, uint64_t bytes) const;
  bool is_pinned(const void* address, uint64_t bytes) const { return holding(address, bytes).has_value(); }
  // Returns shared memory of this context that contains all of these bytes, for a copy. Unless `wait`, marks
  // the allocation as used (and written, if `write`) by an asynchronous copy.
  std::optional<HostAllocation> use_shared(const void* address, uint64_t bytes, const Context& context,
                                           bool write, bool wait);
  // True if there is memory that kernels write in place.
  bool any_shared() const { return shared_bytes_.load(std::memory_order_relaxed) != 0; }
  // True if an asynchronous copy from the device may still write here.
  bool is_written(const void* address) const;

 private:
  mutable std::mutex mutex_;
  std::mutex reaching_;
  std::map<uint64_t, HostAllocation> allocations_;
  std::atomic<uint64_t> shared_bytes_{0};
  uint64_t next_id_ = uint64_t{1} << 40;  // separate from the ids of device allocations
};

HostMemory& host_memory();

// Prepares host memory for a kernel of the context that is given this address or one near it: mirrors.h then
// keeps the memory coherent, unless the server shares it or kernels have no address for it. The first call
// for an allocation waits for pending work.
CUresult reach_host_memory(uint64_t address, Context& context);  // client/api/host_memory.cc

}  // namespace gpupool::client
