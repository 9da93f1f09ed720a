// The session's device memory: its range of addresses, its mappings, and pending frees.
//
// Executor's thread, except where stated. collect(): any thread. Frees take effect in the order in which they
// were queued, each after the events recorded with it have passed; no thread blocks for that. Consecutive
// frees share a set of events if no stream got work between them.
#pragma once
#include <atomic>
#include <chrono>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <span>
#include <vector>

#include "server/quota/ledger.h"
#include "server/worker/checkpoint/checkpoint_image.h"
#include "server/worker/memory/device_windows.h"
#include "server/worker/memory/reclaimer.h"
#include "server/worker/memory/scrubber.h"
#include "server/worker/session/contexts.h"
#include "server/worker/session/outbox.h"
#include "server/worker/sharing/exported_handles.h"

namespace gpupool::worker {

constexpr size_t kMaxMappings = 1u << 20;
constexpr size_t kMaxPendingFrees = 1u << 20;
constexpr size_t kMaxAvoided = 256;

// Interface through which an allocation waits for memory on a full device; implemented by MemoryMoves.
class FullDeviceWaiter {
 public:
  struct Wait {
    int device = 0;
    uint64_t bytes = 0;
    bool returns = false;  // the memory comes back from host memory
    std::chrono::steady_clock::time_point since{};
    // State of the FullDeviceWaiter.
    std::chrono::steady_clock::time_point asked{};
    uint64_t question = 0;
    // Wait limit of an allocation; then the device counts as full.
    std::chrono::milliseconds patience{30'000};
  };
  // Waits for a moment. Returns false when further waiting is useless.
  virtual bool await(Wait& wait) = 0;

 protected:
  ~FullDeviceWaiter() = default;
};

class DeviceMemory {
 public:
  // `direct_memory` may be null: no direct transfers.
  DeviceMemory(const DeviceApi& api, Contexts& contexts, Outbox& outbox, quota::Ledger& ledger,
               Scrubber& scrubber, transport::DirectMemory* direct_memory)
      : api_(api), contexts_(contexts), outbox_(outbox), ledger_(ledger), scrubber_(scrubber) {
    if (direct_memory) windows_.emplace(api, *direct_memory);
  }

  void take_range(uint64_t base, uint64_t size);
  void disable_direct_access() {
    cpu_can_access_ = false;
    windows_.reset();
  }
  // Replaces the range by another one. The old range must be empty.
  CUresult move(uint64_t preferred, uint64_t size);
  // Reserves free parts of [base, base + size), so that the driver places nothing there. Retries with halves
  // of a part that cannot be reserved.
  void reserve_addresses(uint64_t base, uint64_t size);
  void release_range();
  void release_avoided();
  uint64_t base() const { return base_; }
  uint64_t size() const { return size_; }

  // Maps new memory, zeroed before the client can use it. `peers`: bit mask of other devices that get access
  // (cuMemPoolSetAccess). May postpone the reply to the command (Scrubber::zero_unmapped).
  CUresult map(uint64_t address, uint64_t size, int device, uint64_t granularity, uint32_t peers = 0);
  // --- Access between devices (device_memory_peers.cc) ---
  // cuCtxEnablePeerAccess: gives the device of `accessing` access to all present and later mappings on the
  // device of `accessed`, until forbid_access() or the destruction of either context. Memory that the client
  // maps with cuMemMap keeps the access set by cuMemSetAccess.
  CUresult allow_access(const ContextState& accessing, const ContextState& accessed);
  void forbid_access(const ContextState& accessing, const ContextState& accessed);
  // Records access that cuMemSetAccess has given to mappings of this class, to restore it when they are
  // moved.
  void note_access(uint64_t address, uint64_t size, std::span<const CUmemAccessDesc> access);
  // Returns the device of the mapping at this address, or -1 if there is none.
  int device_of(uint64_t address) const;
  // Charges the tenant's quota; call before the device allocates. If the quota is exhausted, waits up to 10 s
  // for pending frees, then returns OUT_OF_MEMORY. uncharge(): call after the device has freed the memory;
  // any thread.
  CUresult charge(int device, uint64_t bytes);
  void uncharge(int device, uint64_t bytes) { ledger_.release(device, bytes); }
  // Call if the device refused the memory of the last charge(), so that it does not count in the session's
  // peak.
  void undo_peak(int device) { ledger_.undo_peak(device); }
  // The same for memory shared between sessions (quota::Ledger). share_charge(): *charge is 0 before the
  // memory is shared, and its id afterwards.
  CUresult share_charge(int device, uint64_t bytes, uint64_t* charge);
  CUresult join_charge(int device, uint64_t bytes, uint64_t charge);
  void leave_charge(int device, uint64_t bytes, uint64_t charge) { ledger_.leave(device, bytes, charge); }
  // True if memory of the device can be shared; it must be created as shareable.
  bool shareable(int device) const;
  // Returns the mapping at an address for other sessions. From now on it is not moved to host memory.
  CUresult share(uint64_t address, ExportedHandles::Memory* memory, uint64_t* offset);
  // Sets a function to call before the session releases memory. It returns true if other sessions may hold
  // the memory.
  void on_release(std::function<bool(CUmemGenericAllocationHandle)> released) {
    released_ = std::move(released);
  }
  bool releasing(CUmemGenericAllocationHandle memory) const { return released_ && released_(memory); }
  // Another thread may be reading the client's memory (migration/memory_rounds.h). Called before memory is
  // unmapped, or access to it is taken away, by any thread; frees wait while `is_being_read`.
  struct Reader {
    std::function<bool(uint64_t address, uint64_t size)> is_being_read;
    std::function<void(uint64_t address, uint64_t size)> leave;  // returns when it is not
  };
  void set_reader(Reader reader) { reader_ = std::move(reader); }
  void unmapping(uint64_t address, uint64_t size) const {
    if (reader_.leave) reader_.leave(address, size);
  }
  // Calls cuMemCreate. On a full device, waits for pending frees and then for room (FullDeviceWaiter). The
  // caller has charged the memory.
  CUresult create(CUmemGenericAllocationHandle* memory, uint64_t size, const CUmemAllocationProp& properties,
                  unsigned long long flags);
  // Calls `attempt` until it returns another result than OUT_OF_MEMORY, waiting as create() does.
  CUresult with_room(int device, uint64_t bytes, const std::function<CUresult()>& attempt);
  // Calls `attempt` again while it returns OUT_OF_MEMORY and an abandoned session has memory on the device
  // (reclaimer.h).
  CUresult with_reclaimed(int device, const std::function<CUresult()>& attempt);
  // --- Oversubscription (device_memory_moves.cc) ---
  // Without one, no memory of abandoned sessions is reclaimed.
  void set_reclaimer(Reclaimer& reclaimer) { reclaimer_ = &reclaimer; }
  void set_full_device_waiter(FullDeviceWaiter& waiter) { full_device_waiter_ = &waiter; }
  // Moves mappings to host memory; the session must have no work on the device. Moves `bytes` if possible,
  // never more than `most`, and only while at least `keep` bytes of the session remain on the device. Returns
  // the bytes moved.
  uint64_t move_out(int device, uint64_t bytes, uint64_t most, uint64_t keep);
  bool moved_out() const { return moved_ != 0; }
  // Moves all memory back to its addresses, waiting for room. After an error some of it is still in host
  // memory. Adds the time spent, except waiting, to *took.
  CUresult move_back(std::chrono::nanoseconds* took);

  // --- Checkpoints (device_memory_checkpoint.cc) ---
  void add_pieces(CheckpointImage::Pieces& pieces);

  // --- Frees, and the end of mappings (device_memory_frees.cc) ---
  // Frees mappings after `events` (already recorded) have passed and the present work of `streams` is done,
  // all of them of `context`. Without events and streams, the free only waits for earlier frees.
  CUresult free(uint64_t address, uint64_t size, uint64_t sequence, ContextState* context,
                std::span<StreamState* const> streams, std::vector<CUevent> events);
  // Frees nothing, but reports `sequence` as retired after all earlier frees.
  void retire(uint64_t sequence) { (void)free(0, 0, sequence, nullptr, {}, {}); }
  // Announces that the free with this sequence number will be queued after frees with higher numbers, which
  // then do not count as retired before it.
  void expect_late(uint64_t sequence);
  // Completes frees whose events have passed; cheap if none are pending.
  void collect();
  // Waits up to 10 s until all queued frees have taken effect, for functions that report memory: CUDA's own
  // cuMemFree waits.
  void settle();
  // For monitoring: whether a thread is mapping, freeing or moving memory right now.
  bool busy() { return !std::unique_lock(mutex_, std::try_to_lock); }
  bool pending() const { return pending_.load(std::memory_order_acquire) != 0; }
  // Call when the context's work is done: ends the wait for its events and removes its mappings. `gone`: the
  // context is already destroyed, and its events with it.
  void drop_context(ContextState& context, bool gone);
  void drop_all();

  // True if the bytes may be passed to the driver as device memory: they are within the range or within a
  // registered variable of a module.
  bool owns(uint64_t address, uint64_t size) const;
  bool in_range(uint64_t address, uint64_t size) const {
    return address >= base_ && size <= size_ && address - base_ <= size_ - size;
  }
  struct Mapped {
    uint64_t address, size;
    int device;
    uint32_t peers;               // bit mask of other devices with access
    const ContextState* context;  // may be null
  };
  // Calls `visit` for each mapping, in the order of addresses.
  void for_each_mapping(const std::function<void(const Mapped&)>& visit) const {
    for (const auto& [address, mapping] : mappings_)
      visit({address, mapping.size, mapping.device, mapping.peers, mapping.context});
  }
  // Returns the mapping that starts at this address.
  std::optional<Mapped> find_mapping(uint64_t address) const {
    const auto found = mappings_.find(address);
    if (found == mappings_.end()) return std::nullopt;
    const Mapping& mapping = found->second;
    return Mapped{address, mapping.size, mapping.device, mapping.peers, mapping.context};
  }
  bool cpu_can_access() const { return cpu_can_access_; }
  // True if the bytes are mapped, and the CPU can read and write them at the same addresses.
  bool is_cpu_accessible(uint64_t address, uint64_t size) const;
  // Registers the windows of these bytes for DirectMemory. Returns false if not all of them can be
  // registered.
  bool register_for_rdma(uint64_t address, uint64_t size, std::vector<DeviceSpan>* spans);
  bool add_variable(uint64_t owner, uint64_t address, uint64_t size);
  void forget_variables(uint64_t owner) {
    std::erase_if(variables_, [owner](const auto& known) { return known.second.second == owner; });
  }

 private:
  // Memory that the client has freed counts as free, because CUDA's cuMemFree would have waited. So an
  // allocation waits for pending frees, but for a limited time: they may depend on something that the client
  // has yet to send.
  static constexpr std::chrono::seconds kLongestSettle{10};

  struct Mapping {
    uint64_t size = 0;
    CUmemGenericAllocationHandle memory = 0;
    const ContextState* context = nullptr;
    int device = 0;
    std::byte* moved = nullptr;  // copy in host memory; null: in device memory
    uint64_t charge = 0;         // id in quota::Ledger; 0: not shared
    bool away = false;           // removed from the device by a checkpoint
    uint32_t peers = 0;          // bit mask of devices with access to this mapping
  };
  class CheckpointedMapping;
  struct Piece {
    uint64_t address;
    Mapping mapping;
  };
  struct Free {
    uint64_t sequence;
    std::vector<Piece> pieces;
  };
  struct Group {
    CUcontext context = nullptr;
    std::shared_ptr<EventPool> pool;
    std::vector<CUevent> events;
    std::vector<Free> frees;
  };

  bool passed(Group& group);
  bool is_being_read(const Group& group) const;
  std::map<uint64_t, Mapping>::const_iterator mapping_of(uint64_t address) const;
  CUmemAllocationProp properties_of(int device) const;
  bool move_out(uint64_t address, Mapping& mapping);
  std::byte* copy_to_host(uint64_t address, const Mapping& mapping);
  bool replace_with_host_copy(uint64_t address, Mapping& mapping, std::byte* host);
  CUresult fill(uint64_t address, const Mapping& mapping, const std::byte* from);
  CUresult create(CUmemGenericAllocationHandle* memory, uint64_t size, const CUmemAllocationProp& properties,
                  unsigned long long flags, FullDeviceWaiter::Wait& wait);
  CUresult with_room(FullDeviceWaiter::Wait& wait, const std::function<CUresult()>& attempt);
  void release_host(const Mapping& mapping);
  CUresult map_at(uint64_t address, const Mapping& mapping);
  bool is_mapped(uint64_t address, uint64_t size) const;  // true if any byte is mapped
  CUresult add_new(uint64_t address, const Mapping& mapping, bool to_be_zeroed);
  void give_back_new(const Mapping& mapping);
  bool supports_gpudirect(int device) const;
  bool host_may_access(int device) const;
  CUresult set_access(uint64_t address, const Mapping& mapping);
  CUresult set_peer_access(int peer, int device, CUmemAccess_flags flags);
  std::vector<int> peers_of(int device) const;
  // Waits until at least one more free has taken effect. Returns false if none is pending or `stop` has been
  // reached.
  bool wait_for_free(std::chrono::steady_clock::time_point stop);
  // For an allocation that was refused: true if it is worth another attempt.
  bool reclaim(int device, bool quota_full);
  void finish(Group& group);
  void unmap(const Piece& piece);

  const DeviceApi& api_;
  Contexts& contexts_;
  Outbox& outbox_;
  quota::Ledger& ledger_;
  Scrubber& scrubber_;
  std::vector<std::pair<uint64_t, uint64_t>> avoided_;  // base, size
  uint64_t base_ = 0;
  uint64_t size_ = 0;
  std::map<uint64_t, Mapping> mappings_;  // executor's thread
  std::set<std::pair<const ContextState*, const ContextState*>>
      peers_;         // (accessing, accessed) of allow_access()
  size_t moved_ = 0;  // number of mappings in host memory
  Reclaimer* reclaimer_ = nullptr;
  FullDeviceWaiter* full_device_waiter_ = nullptr;  // null: allocations fail at once on a full device
  bool cpu_can_access_ = true;                      // until a device denies the CPU access
  std::set<int> cpu_accessible_devices_;            // devices whose memory the CPU was seen to read and write
  std::function<bool(CUmemGenericAllocationHandle)> released_;
  Reader reader_;
  std::optional<DeviceWindows> windows_;
  std::multimap<uint64_t, std::pair<uint64_t, uint64_t>> variables_;  // by address: size, owner's handle
  std::mutex mutex_;  // guards the rest; held during driver calls
  std::deque<Group> groups_;
  std::set<uint64_t> late_;         // arguments of expect_late() whose frees have not retired
  uint64_t retired_ = 0;            // highest sequence number of a free that has taken effect
  std::atomic<size_t> pending_{0};  // number of frees in groups_
};

}  // namespace gpupool::worker
