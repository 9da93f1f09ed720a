// The memory map: who owns each address range, what kind of memory it is, and who may access it.
//
// The memory itself belongs to the device's heap, a memory pool, softgpu's reserved range or the program.
// Thread-safe. There are two locks: one for the index, held briefly; and the access lock, held shared while
// the host touches device memory (copies, waits for values) and exclusively while memory is freed or
// unmapped, so that freeing memory under a running copy cannot crash the process.
#pragma once
#include <pthread.h>

#include <atomic>
#include <cstdint>
#include <map>
#include <optional>
#include <vector>

#include "server/softgpu/runtime/object.h"

namespace gpupool::softgpu {

enum class MemoryKind : uint8_t {
  device,          // cuMemAlloc
  managed,         // cuMemAllocManaged
  pool,            // cuMemAllocAsync
  module_data,     // a module's globals; the module owns their segment
  module_managed,  // a module's __managed__ variables
  mapped,          // cuMemMap
  opened,          // cuIpcOpenMemHandle
  pinned,          // cuMemHostAlloc
  registered,      // cuMemHostRegister
  array,           // a CUDA array's; programs do not see its address
  graph,           // a graph memory node's (graph_memory.h)
};

struct MemoryRange {
  uint64_t address = 0;
  uint64_t size = 0;  // bytes
  MemoryKind kind = MemoryKind::device;
  int device = 0;        // CUdevice; for host memory the device of its context
  uint64_t context = 0;  // handle; 0: belongs to no context
  uint32_t flags = 0;    // of the call that allocated it
  uint64_t id = 0;       // CU_POINTER_ATTRIBUTE_BUFFER_ID; assigned by add()
  Ref<Object> owner;     // PhysicalMemory of a mapping, MemoryPool of an asynchronous allocation
  uint64_t offset = 0;   // bytes into the mapped or opened memory
  bool readable = true;
  bool writable = true;
  // For mappings: access granted by cuMemSetAccess, one bit per device, and for the host. All locations share
  // one CPU mapping, so `readable` and `writable` are the union of their access.
  uint64_t reading_devices = 0, writing_devices = 0;
  bool host_reads = false, host_writes = false;
  bool sync_memops = false;  // CU_POINTER_ATTRIBUTE_SYNC_MEMOPS
  bool free_queued = false;  // cuMemFreeAsync has been called

  // For mappings: true if cuMemSetAccess granted the device this access.
  bool grants(int device, bool write) const {
    return ((write ? writing_devices : reading_devices) >> device & 1) != 0;
  }
  bool is_host() const { return kind == MemoryKind::pinned || kind == MemoryKind::registered; }
  bool is_module() const { return kind == MemoryKind::module_data || kind == MemoryKind::module_managed; }
  bool is_managed() const { return kind == MemoryKind::managed || kind == MemoryKind::module_managed; }
};

// A reader-writer lock that prefers writers, so that a steady flow of copies cannot starve the rare frees. A
// thread must not lock it twice.
class AccessLock {
 public:
  AccessLock();
  void lock() { pthread_rwlock_wrlock(&lock_); }
  void unlock() { pthread_rwlock_unlock(&lock_); }
  void lock_shared() { pthread_rwlock_rdlock(&lock_); }
  void unlock_shared() { pthread_rwlock_unlock(&lock_); }

 private:
  pthread_rwlock_t lock_;
};

class MemoryMap {
 public:
  // Adds a range and gives it an id. False if it overlaps an existing range.
  bool add(MemoryRange range);
  // Returns the range that contains the address.
  std::optional<MemoryRange> find(uint64_t address) const;
  // Removes and returns the range that starts at the address, if `accept` returns true for it.
  template <class Accept>
  std::optional<MemoryRange> take(uint64_t address, const Accept& accept) {
    index_lock_.lock();
    std::optional<MemoryRange> found;
    if (auto it = ranges_.find(address); it != ranges_.end() && accept(it->second)) {
      found = std::move(it->second);
      ranges_.erase(it);
    }
    index_lock_.unlock();
    return found;
  }
  // Changes the ranges that tile [address, address + size); false, without a change, if they do not cover it
  // exactly.
  template <class Change>
  bool change(uint64_t address, uint64_t size, const Change& change_range) {
    index_lock_.lock();
    const bool whole = tiles(address, size);
    if (whole) {
      for (auto it = ranges_.find(address); it != ranges_.end() && it->first < address + size; ++it) {
        change_range(it->second);
      }
    }
    index_lock_.unlock();
    return whole;
  }
  // Returns the starts of the ranges that tile [address, address + size); empty if they do not cover it
  // exactly.
  std::vector<uint64_t> starts_within(uint64_t address, uint64_t size) const;
  // Removes and returns the ranges of a context that is being destroyed. Memory of pools outlives its
  // context.
  std::vector<MemoryRange> take_context(uint64_t context);

  // True if all bytes are accessible, inside one range or across adjacent mappings: by `device` if given,
  // else by any location.
  bool accessible(uint64_t address, uint64_t size, bool write,
                  std::optional<int> device = std::nullopt) const;
  // True if any byte belongs to a range.
  bool overlaps(uint64_t address, uint64_t size) const;

  AccessLock& access_lock() const { return access_lock_; }

 private:
  using Ranges = std::map<uint64_t, MemoryRange>;
  Ranges::const_iterator containing(uint64_t address) const;
  bool tiles(uint64_t address, uint64_t size) const;

  mutable AccessLock index_lock_;
  mutable AccessLock access_lock_;
  Ranges ranges_;
  uint64_t next_id_ = 1;
};

}  // namespace gpupool::softgpu
