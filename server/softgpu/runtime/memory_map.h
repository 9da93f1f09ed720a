// What every address range means to the driver API: device, managed, pinned, registered and mapped memory.
//
// Knows who owns a range and whether it may be accessed; the memory itself belongs to the device's heap, to a
// memory pool or to the reserved range. Thread-safe. Two locks: a short one for the index, and the access
// lock, held shared while the host side touches device memory (copies, waits on values) and exclusively while
// memory is taken away, so that freeing or unmapping under a running copy cannot crash the process.
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
  module_data,     // a module's globals; their segment belongs to the module
  module_managed,  // likewise, __managed__
  mapped,          // cuMemMap
  opened,          // cuIpcOpenMemHandle
  pinned,          // cuMemHostAlloc
  registered,      // cuMemHostRegister
  array,           // an array's, whose address no program is told
  graph,           // of a graph's memory node (graph_memory.h)
};

struct MemoryRange {
  uint64_t address = 0;
  uint64_t size = 0;  // bytes
  MemoryKind kind = MemoryKind::device;
  int device = 0;        // ordinal; the device of the context for host memory
  uint64_t context = 0;  // handle; 0 where memory belongs to no context
  uint32_t flags = 0;    // of the call that made it
  uint64_t id = 0;       // CU_POINTER_ATTRIBUTE_BUFFER_ID; assigned by add()
  Ref<Object> owner;     // physical memory of a mapping, pool of an asynchronous allocation
  uint64_t offset = 0;   // of a mapping in its physical memory
  bool readable = true;
  bool writable = true;
  // Mappings: access set by cuMemSetAccess, one bit per device, and for the host. All locations share one CPU mapping, so `readable`
  // and `writable` are the union of their access.
  uint64_t reading_devices = 0, writing_devices = 0;
  bool host_reads = false, host_writes = false;
  bool sync_memops = false;  // CU_POINTER_ATTRIBUTE_SYNC_MEMOPS
  bool freeing = false;  // cuMemFreeAsync is on its way

  // Of a mapping: what cuMemSetAccess granted the device.
  bool grants(int device, bool write) const { return ((write ? writing_devices : reading_devices) >> device & 1) != 0; }
  bool is_host() const { return kind == MemoryKind::pinned || kind == MemoryKind::registered; }
  bool is_module() const { return kind == MemoryKind::module_data || kind == MemoryKind::module_managed; }
  bool is_managed() const { return kind == MemoryKind::managed || kind == MemoryKind::module_managed; }
};

// A reader-writer lock that lets writers in first: copies come without end, frees are few.
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
  // False when the range overlaps one that is there.
  bool add(MemoryRange range);
  std::optional<MemoryRange> find(uint64_t address) const;
  // Removes the range that starts at the address if `accept` agrees, and returns it.
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
  // Changes the ranges inside [address, address + size) in place; false when they do not cover it exactly.
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
  // The starts of the ranges that tile [address, address + size) exactly; empty when they do not.
  std::vector<uint64_t> starts_within(uint64_t address, uint64_t size) const;
  // Removes every range of a context (its destruction) but memory of pools, which outlives it (cuCtxDestroy).
  std::vector<MemoryRange> take_context(uint64_t context);

  // Whether all bytes may be accessed, inside one range or across mappings that touch: by the device where one is named, else by any.
  bool accessible(uint64_t address, uint64_t size, bool write, std::optional<int> device = std::nullopt) const;
  // Whether any byte of it belongs to a range.
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
