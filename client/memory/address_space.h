// Allocates device addresses from the range that the worker has reserved for this session.
//
// Allocations up to 16 MiB are blocks of slabs. A slab is one mapping: a single granule that small blocks
// share, or as many granules as one block needs. A slab is unmapped when its last block is freed, except for
// some idle slabs that stay mapped for programs that allocate and free in turns. Larger allocations get a
// mapping of their own. A freed address is reused only once the server reports that every command queued
// before the free has run (retired()). The same range is reserved in this process without memory, so that no
// host pointer equals a device address. Thread-safe.
#pragma once
#include <atomic>
#include <cstdint>
#include <deque>
#include <map>
#include <mutex>
#include <optional>
#include <set>
#include <tuple>
#include <vector>

#include "common/result.h"

namespace gpupool::client {

struct Device;
class PoolMemory;

struct Allocation {
  uint64_t address = 0;
  uint64_t size = 0;  // size that the program asked for, in bytes
  uint64_t context = 0;
  Device* device = nullptr;
  uint64_t id = 0;       // CU_POINTER_ATTRIBUTE_BUFFER_ID
  bool foreign = false;  // cuMemFree does not free it: a module's variable, or mapped memory
  // Managed memory, which the host has at the same address (mirrors.h); occupies whole pages.
  bool managed = false;
  enum class Origin : uint8_t { plain, stream_ordered, shared_pool } origin = Origin::plain;
  int handle_types = 0;  // of mapped memory: CUmemAllocationHandleType bits
  uint64_t pool = 0;     // handle of the memory pool that it was allocated from; 0: none
  // Memory of that pool; it outlives the allocation. Null: the allocation has its own mapping.
  PoolMemory* pool_memory = nullptr;
  bool sync_memops = false;  // CU_POINTER_ATTRIBUTE_SYNC_MEMOPS
  // The program asked for memory that the device's decompression engine can access.
  bool decompressable = false;
};

class AddressSpace {
 public:
  // Reserves the range in this process and uses it. Returns false if the range is not free here, so that the
  // server must propose another, or if it is invalid: the granularity is not a power of two, the base is 0,
  // or the base or the size is not a multiple of the granularity.
  bool adopt(uint64_t base, uint64_t size, uint64_t granularity);
  static bool is_free(uint64_t base, uint64_t size);
  uint64_t base() const { return base_; }
  uint64_t size() const { return size_; }
  uint64_t granularity() const { return granularity_; }

  static constexpr uint64_t kMostIdle = 32u << 20;
  // bytes of idle slabs that stay mapped, per device
  struct Placement {
    uint64_t address = 0;      // an address from the range, and the mapping that it needs
    uint64_t map_address = 0;  // mapping to request first, if map_size is not 0
    uint64_t map_size = 0;
  };
  // Returns nullopt if the range is full.
  std::optional<Placement> allocate(uint64_t bytes, uint64_t alignment, const Allocation& about);
  // Marks the mapping as requested or present, so that other allocations may use the rest of it.
  void mapped(const Placement& place);
  // Undoes allocate() when mapping failed.
  void abandon(uint64_t address);

  struct Release {
    uint64_t address = 0;
    uint64_t unmap_size = 0;  // 0: the mapping stays, for other blocks
  };
  // Removes the live allocation that starts at `address`; nullopt: none starts there. The caller then sends
  // the free command and passes its sequence number to retire_after(). `most_idle`: bytes of idle slabs that
  // stay mapped, per device.
  std::optional<Release> release(uint64_t address, uint64_t most_idle = kMostIdle);
  void retire_after(const Release& release, uint64_t sequence);
  // Idle slabs: mapped, without live blocks, kept for later small allocations. take_idle() hands them to the
  // caller to unmap.
  uint64_t idle_bytes(const Device* device) const;
  std::vector<Release> take_idle(const Device* device);
  // Reuses the addresses of all frees up to this sequence number, which the server has executed.
  void retired(uint64_t sequence);

  // Spans are whole granules for memory pools, which allocate inside them. After reserve_span() the caller
  // calls mapped() or abandon_span(), as after allocate(). A span of up to 16 MiB that is given back may stay
  // mapped and is reusable at once, so no work may still use it.
  std::optional<Placement> reserve_span(uint64_t bytes, const Allocation& about);
  void abandon_span(uint64_t address);
  Release return_span(uint64_t address, uint64_t most_idle);
  void add_pooled(Allocation allocation);
  // Removes a pool's allocation; nullopt: none starts at `address`.
  std::optional<Allocation> take_pooled(uint64_t address);

  // Records device memory that this class did not place (a module's variable, memory that the program has
  // mapped or opened), so that its addresses are recognised as device addresses.
  void add_foreign(const Allocation& allocation);
  void forget_foreign(uint64_t address);

  // True if any of these bytes may be device memory of this session: in its range, or in a foreign
  // allocation.
  bool overlaps(uint64_t address, uint64_t bytes) const;
  // Returns the allocation that contains the address.
  std::optional<Allocation> find(uint64_t address) const;
  void set_sync_memops(uint64_t address, bool on);  // of the allocation that starts there
  bool in_range(uint64_t address) const { return address - base_ < size_; }
  // True if the address counts as device memory of this session: in its range but not a host place, or in a
  // foreign allocation.
  bool knows(uint64_t address) const {
    return in_range(address) ? address < lowest_host_.load(std::memory_order_relaxed) || !host_place(address)
                             : find(address).has_value();
  }

  // Host places: addresses of this range for pinned host memory that kernels may also use, taken from the end
  // of the range. The server has nothing mapped there at first.
  std::optional<uint64_t> reserve_host(uint64_t bytes);
  // `sequence`: number of the command that unmaps the memory on the server; 0: nothing is mapped there.
  void unreserve_host(uint64_t address, uint64_t sequence);
  // Returns the start of the host place that contains the address.
  std::optional<uint64_t> host_place(uint64_t address) const;
  bool has_hosts() const { return lowest_host_.load(std::memory_order_relaxed) != UINT64_MAX; }
  bool may_be_host(uint64_t address) const {
    return in_range(address) && address >= lowest_host_.load(std::memory_order_relaxed);
  }

  // Addresses without memory, for cuMemAddressReserve; the program maps memory in them.
  std::optional<uint64_t> reserve(uint64_t bytes, uint64_t alignment, uint64_t requested);
  bool is_reserved(uint64_t address, uint64_t bytes) const;  // lies inside one reservation
  bool unreserve(uint64_t address, uint64_t bytes);          // only a whole reservation

  // Forgets all allocations of a context that was destroyed or reset. The server unmaps them by itself; their
  // addresses are reused once `sequence` has retired.
  void forget_context(uint64_t context, uint64_t sequence);

 private:
  struct Slab {
    uint64_t size = 0;
    Device* device = nullptr;
    uint64_t context = 0;
    uint64_t used = 0;                  // bytes of live blocks, and of freed ones that have not retired
    uint64_t live = 0;                  // bytes of live blocks
    std::map<uint64_t, uint64_t> free;  // address -> size, of free blocks
    bool idle = false;                  // kept without live blocks
    bool mapped = false;                // the mapping was requested: other allocations may take blocks of it
    bool managed = false;               // all of its blocks are managed memory
  };
  struct Pending {
    uint64_t sequence;
    uint64_t address;
    uint64_t size;
    bool whole;  // true: a whole mapping, which returns to the range; false: a block of a slab
  };
  // Bytes; larger allocations have a mapping of their own.
  static constexpr uint64_t kLargestBlock = 16u << 20;
  static uint64_t new_id();
  std::optional<uint64_t> take_range(uint64_t bytes, uint64_t alignment, uint64_t requested);
  void return_range(uint64_t address, uint64_t bytes);
  static void insert_free(std::map<uint64_t, uint64_t>& free, uint64_t address, uint64_t size);
  using Slabs = std::map<uint64_t, Slab>;
  Slabs::iterator slab_of(uint64_t address);
  std::optional<uint64_t> take_block(uint64_t size, const Allocation& about);
  std::optional<Placement> take_slab_block(uint64_t size, const Allocation& about);
  void set_idle(Slab& slab, bool idle);
  void update_free_index(const Slabs::value_type& slab);
  Slabs::iterator erase_slab(Slabs::iterator slab);

  mutable std::mutex mutex_;
  uint64_t base_ = 0;
  uint64_t size_ = 0;
  uint64_t granularity_ = 0;
  std::map<uint64_t, uint64_t> free_;  // unused parts of the range: address -> size
  std::map<uint64_t, Allocation> allocations_;
  std::map<uint64_t, uint64_t> block_size_;  // live blocks: address -> rounded size
  Slabs slabs_;
  std::map<const Device*, uint64_t> idle_;  // bytes of idle slabs, by device
  // Slabs with free blocks: device, context, managed, size, address.
  std::set<std::tuple<const Device*, uint64_t, bool, uint64_t, uint64_t>> slabs_with_free_blocks_;
  std::map<uint64_t, uint64_t> host_places_;  // address -> size
  std::atomic<uint64_t> lowest_host_{UINT64_MAX};
  std::map<uint64_t, uint64_t> reservations_;  // address -> size
  struct LargeSpan {
    uint64_t size = 0, context = 0;
  };
  std::map<uint64_t, LargeSpan> large_spans_;  // spans larger than kLargestBlock, which are not slabs
  std::deque<Pending> pending_;
};

}  // namespace gpupool::client
