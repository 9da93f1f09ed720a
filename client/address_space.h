// Device addresses, minted by the client out of the range that the worker has reserved for this session.
//
// Allocations up to 16 MiB are blocks of slabs: mappings of one granule that small ones share, or of as many as one block
// needs. A slab goes when its last block does, but for a few that stay mapped for programs that allocate and free in turns.
// Larger allocations get mappings of their own. An address that is freed is used again only when the server says that
// everything queued before the free has run (retired). The same range is reserved in this process without memory, so that no host pointer can equal a device
// address. Any thread.
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

#include "protocol/wire/result.h"

namespace gpupool::client {

struct Device;
class PoolMemory;

struct Allocation {
  uint64_t address = 0;
  uint64_t size = 0;        // as asked for
  uint64_t context = 0;
  Device* device = nullptr;
  uint64_t id = 0;          // CU_POINTER_ATTRIBUTE_BUFFER_ID
  bool foreign = false;     // not freed by cuMemFree: a module's variable, mapped memory
  bool managed = false;     // the host has it at the same address (mirrors.h): in whole pages of its own
  enum class Origin : uint8_t { plain, stream_ordered, shared_pool } origin = Origin::plain;
  int handle_types = 0;     // of mapped memory: CUmemAllocationHandleType
  uint64_t pool = 0;        // handle of the memory pool that it comes from
  PoolMemory* pool_memory = nullptr;  // that pool's, which lives at least as long; the allocation has no mapping of its own
  bool sync_memops = false; // CU_POINTER_ATTRIBUTE_SYNC_MEMOPS
  bool decompressable = false;  // the program asked for memory that the device's decompression engine reaches
};

class AddressSpace {
 public:
  // Takes the range if it is free in this process. False if it is not, so that the server has to move it; also false if the granularity
  // is not a power of two, or the base is 0, which is no device address, or the base or the size is not a multiple of the granularity.
  bool adopt(uint64_t base, uint64_t size, uint64_t granularity);
  static bool is_free(uint64_t base, uint64_t size);
  uint64_t base() const { return base_; }
  uint64_t size() const { return size_; }
  uint64_t granularity() const { return granularity_; }

  static constexpr uint64_t kMostIdle = 32u << 20;

  struct Place {
    uint64_t address = 0;
    uint64_t map_address = 0;  // to be mapped first, when map_size is not 0
    uint64_t map_size = 0;
  };
  // nullopt: the range is full.
  std::optional<Place> allocate(uint64_t bytes, uint64_t alignment, const Allocation& about);
  // The mapping has been asked for and will be there, or is: whoever allocates may have a part of it.
  void mapped(const Place& place);
  // Undoes allocate() when mapping failed.
  void abandon(uint64_t address);

  struct Release {
    uint64_t address = 0;
    uint64_t unmap_size = 0;  // 0: the mapping goes on serving other blocks
  };
  // The start of a live allocation leaves the books; nullopt: it is none. Then retire_after() with the free command's
  // sequence number. `most_idle`: bytes that stay mapped for nobody, per device.
  std::optional<Release> release(uint64_t address, uint64_t most_idle = kMostIdle);
  void retire_after(const Release& release, uint64_t sequence);
  // Empty mappings that are kept for the next small allocation: free memory, to whoever asks or needs it.
  uint64_t idle_bytes(const Device* device) const;
  std::vector<Release> take_idle(const Device* device);
  // The server has passed all frees up to this sequence number.
  void retired(uint64_t sequence);

  // Spans: whole granules for memory pools, whose allocations lie within. take_span(): as allocate(), then mapped() or abandon_span().
  // Nothing uses a span that is given back: one up to 16 MiB may stay mapped, and serves the next allocation at once.
  std::optional<Place> take_span(uint64_t bytes, const Allocation& about);
  void abandon_span(uint64_t address);
  Release give_span(uint64_t address, uint64_t most_idle);
  void add_pooled(Allocation allocation);
  // nullopt: no memory pool's allocation starts there.
  std::optional<Allocation> take_pooled(uint64_t address);

  // Device memory that the driver placed by itself (variables of modules), or that the program has mapped or opened, so that its
  // addresses are known as device addresses.
  void add_foreign(const Allocation& allocation);
  void forget_foreign(uint64_t address);

  // True if any of these bytes can be device memory of this session: in its range, or an allocation outside of it.
  bool overlaps(uint64_t address, uint64_t bytes) const;
  // The allocation that contains the address.
  std::optional<Allocation> find(uint64_t address) const;
  void set_sync_memops(uint64_t address, bool on);  // of the allocation that starts there
  bool in_range(uint64_t address) const { return address - base_ < size_; }
  // Of device memory, that is.
  bool knows(uint64_t address) const {
    return in_range(address) ? address < lowest_host_.load(std::memory_order_relaxed) || !host_place(address) : find(address).has_value();
  }

  // Addresses for host memory that a kernel may be given too: from the end of the range, with nothing mapped on the server.
  std::optional<uint64_t> reserve_host(uint64_t bytes);
  // `sequence`: of the command that unmaps what the server has there; 0: it has nothing.
  void unreserve_host(uint64_t address, uint64_t sequence);
  // The place that holds the address.
  std::optional<uint64_t> host_place(uint64_t address) const;
  bool has_hosts() const { return lowest_host_.load(std::memory_order_relaxed) != UINT64_MAX; }
  bool may_be_host(uint64_t address) const { return in_range(address) && address >= lowest_host_.load(std::memory_order_relaxed); }

  // Addresses without memory for cuMemAddressReserve, and mappings that the program makes in them.
  std::optional<uint64_t> reserve(uint64_t bytes, uint64_t alignment, uint64_t wished);
  bool is_reserved(uint64_t address, uint64_t bytes) const;  // inside one reservation
  bool unreserve(uint64_t address, uint64_t bytes);          // exactly one reservation

  // Forgets everything of a context (destroyed or reset); the server unmaps by itself.
  void forget_context(uint64_t context, uint64_t sequence);

 private:
  struct Slab {
    uint64_t size = 0;
    Device* device = nullptr;
    uint64_t context = 0;
    uint64_t used = 0;                       // bytes of live and waiting blocks
    uint64_t live = 0;                       // bytes of live blocks
    std::map<uint64_t, uint64_t> free;       // address -> size
    bool idle = false;                       // without live blocks, and kept
    bool mapped = false;                     // others may have blocks of it
    bool managed = false;                    // all of its blocks are
  };
  struct Pending {
    uint64_t sequence;
    uint64_t address;
    uint64_t size;
    bool whole;                              // a mapping of its own: the range is free again; else a block of a slab
  };
  static constexpr uint64_t kLargestBlock = 16u << 20;  // above it an allocation has a mapping of its own
  static uint64_t new_id();
  std::optional<uint64_t> take_range(uint64_t bytes, uint64_t alignment, uint64_t wished);
  void give_range(uint64_t address, uint64_t bytes);
  static void insert_free(std::map<uint64_t, uint64_t>& free, uint64_t address, uint64_t size);
  using Slabs = std::map<uint64_t, Slab>;
  Slabs::iterator slab_of(uint64_t address);
  std::optional<uint64_t> take_block(uint64_t size, const Allocation& about);
  std::optional<Place> take_slab_block(uint64_t size, const Allocation& about);
  void set_idle(Slab& slab, bool idle);
  void note_room(const Slabs::value_type& slab);
  Slabs::iterator erase_slab(Slabs::iterator slab);

  mutable std::mutex mutex_;
  uint64_t base_ = 0;
  uint64_t size_ = 0;
  uint64_t granularity_ = 0;
  std::map<uint64_t, uint64_t> free_;        // of the range: address -> size
  std::map<uint64_t, Allocation> allocations_;
  std::map<uint64_t, uint64_t> block_size_;  // live blocks: address -> rounded size
  Slabs slabs_;
  std::map<const Device*, uint64_t> idle_;   // bytes of idle slabs
  std::set<std::tuple<const Device*, uint64_t, bool, uint64_t, uint64_t>> roomy_;  // device, context, managed, size, address of slabs with holes
  std::map<uint64_t, uint64_t> host_places_;
  std::atomic<uint64_t> lowest_host_{UINT64_MAX};
  std::map<uint64_t, uint64_t> reservations_;
  struct LargeSpan {
    uint64_t size = 0, context = 0;
  };
  std::map<uint64_t, LargeSpan> large_spans_;  // that are no slabs
  std::deque<Pending> pending_;
};

}  // namespace gpupool::client
