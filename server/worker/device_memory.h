// The session's device memory: its address range, what is mapped in it, and what is being given back.
//
// map() and free() belong to the executor's thread; collect() to any. Frees retire in the order in which they were
// queued, each when the events recorded with it have passed; nobody blocks for them. An event set is shared by all frees
// between which no stream got new work.
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
#include "server/worker/checkpoint_image.h"
#include "server/worker/contexts.h"
#include "server/worker/device_windows.h"
#include "server/worker/offers.h"
#include "server/worker/outbox.h"
#include "server/worker/scrubber.h"

namespace gpupool::worker {

constexpr size_t kMaxMappings = 1u << 20;
constexpr size_t kMaxPendingFrees = 1u << 20;
constexpr size_t kMaxAvoided = 256;

// Who waits for memory on a device that is full.
class RoomSource {
 public:
  struct Wait {
    int device = 0;
    uint64_t bytes = 0;
    bool returns = false;  // from host memory
    std::chrono::steady_clock::time_point since{}, asked{};  // this and below: the source's
    uint64_t question = 0;
    std::chrono::milliseconds patience{30'000};  // of an allocation: then the device is full as far as it is concerned
  };
  // Waits for a moment. False: it is no use any more.
  virtual bool await(Wait& wait) = 0;

 protected:
  ~RoomSource() = default;
};

class DeviceMemory {
 public:
  // `moved_by` may be null.
  DeviceMemory(const DeviceApi& api, Contexts& contexts, Outbox& outbox, quota::Ledger& ledger, Scrubber& scrubber,
               transport::DirectMemory* moved_by)
      : api_(api), contexts_(contexts), outbox_(outbox), ledger_(ledger), scrubber_(scrubber) {
    if (moved_by) windows_.emplace(api, *moved_by);
  }

  void take_range(uint64_t base, uint64_t size);
  void stage_always() {
    cpu_reaches_ = false;
    windows_.reset();
  }
  // Another range in place of the one so far, which must hold nothing.
  CUresult move(uint64_t wished, uint64_t size);
  // Keeps the driver from placing anything there, as far as it is free: where a range cannot be reserved, halves of it are tried.
  void avoid(uint64_t base, uint64_t size);
  void release_range();
  void release_avoided();
  uint64_t base() const { return base_; }
  uint64_t size() const { return size_; }

  // `peers`: bits of devices that get access besides (cuMemPoolSetAccess). May postpone the command (Scrubber::zero_unmapped).
  CUresult map(uint64_t address, uint64_t size, int device, uint64_t granularity, uint32_t peers = 0);
  // --- Access between devices, in device_memory_peers.cc ---
  // cuCtxEnablePeerAccess: gives `who`'s device access to all present and later mappings of `whose` device, until forbid_access() or
  // the destruction of either context. Memory that the client mapped by cuMemMap keeps the access set by cuMemSetAccess.
  CUresult allow_access(const ContextState& who, const ContextState& whose);
  void forbid_access(const ContextState& who, const ContextState& whose);
  // Records what cuMemSetAccess has given to mappings of this class, so that they keep it when they move.
  void note_access(uint64_t address, uint64_t size, std::span<const CUmemAccessDesc> access);
  // Returns the device of the mapping at this address, or -1 if there is none.
  int device_of(uint64_t address) const;
  // In the tenant's quota, before the device gives anything and after it has got it back. OUT_OF_MEMORY: there is not so much
  // left. What the client has freed already counts as free: it is waited for, bounded. uncharge(): any thread.
  CUresult charge(int device, uint64_t bytes);
  void uncharge(int device, uint64_t bytes) { ledger_.release(device, bytes); }
  // The device refused what the last charge() was for, which does not count in the session's peak.
  void undo_peak(int device) { ledger_.undo_peak(device); }
  // The same for memory that other sessions may have too: quota::Ledger. share_charge(): *charge is 0 until it is shared.
  CUresult share_charge(int device, uint64_t bytes, uint64_t* charge);
  CUresult join_charge(int device, uint64_t bytes, uint64_t charge);
  void leave_charge(int device, uint64_t bytes, uint64_t charge) { ledger_.leave(device, bytes, charge); }
  // Can memory of the device be shared? It has to be made for that.
  bool shareable(int device) const;
  // What is mapped there, for other sessions; it does not move to host memory any more.
  CUresult share(uint64_t address, Offers::Memory* memory, uint64_t* offset);
  // Called before the session lets go of memory; true: others may have it.
  void on_release(std::function<bool(CUmemGenericAllocationHandle)> released) { released_ = std::move(released); }
  bool releasing(CUmemGenericAllocationHandle memory) const { return released_ && released_(memory); }
  // cuMemCreate, which waits as charge() does. The caller has charged it.
  CUresult create(CUmemGenericAllocationHandle* memory, uint64_t size, const CUmemAllocationProp& properties,
                  unsigned long long flags);
  // Calls `attempt` until it gives something else than OUT_OF_MEMORY, as create() does.
  CUresult with_room(int device, uint64_t bytes, const std::function<CUresult()>& attempt);
  // --- Oversubscription, in device_memory_moves.cc ---
  void get_room_by(RoomSource& source) { room_ = &source; }
  // Mappings go to host memory; the caller has seen that the session has no work on the device. `bytes` as far as possible,
  // never more than `most`, and as long as `keep` bytes of the session stay there. The bytes that went.
  uint64_t move_out(int device, uint64_t bytes, uint64_t most, uint64_t keep);
  bool moved_out() const { return moved_ != 0; }
  // All of it, to the same addresses; waits for room. With an error some is still in host memory. *took: without the waiting.
  CUresult move_back(std::chrono::nanoseconds* took);

  // --- Checkpoints, in device_memory_checkpoint.cc ---
  void add_pieces(CheckpointImage::Pieces& pieces);

  // Waits for `events` (already recorded) and for the work that `streams` have, all of `context`; without any, for
  // nothing but earlier frees.
  CUresult free(uint64_t address, uint64_t size, uint64_t sequence, ContextState* context,
                std::span<StreamState* const> streams, std::vector<CUevent> events);
  // Frees nothing; `sequence` is told as retired when everything before it is.
  void retire(uint64_t sequence) { (void)free(0, 0, sequence, nullptr, {}, {}); }
  // The free with this sequence number comes later than ones with higher numbers: none of those counts as retired before it does.
  void expect_late(uint64_t sequence);
  // Frees whose time has come take effect; cheap when there are none.
  void collect();
  // Waits until all frees so far have taken effect, as CUDA's own cuMemFree would have: where memory is counted. Bounded.
  void settle();
  // Whether a thread maps, frees or moves memory at this moment; for monitoring.
  bool busy() { return !std::unique_lock(mutex_, std::try_to_lock); }
  bool pending() const { return pending_.load(std::memory_order_acquire) != 0; }
  // The context's work is over (and its events are gone if `gone`): nothing waits for it, its mappings end.
  void drop_context(ContextState& context, bool gone);
  void drop_all();

  // May the driver be given these bytes as device memory? In the range, or in a module's variable that it was told of.
  bool owns(uint64_t address, uint64_t size) const;
  bool in_range(uint64_t address, uint64_t size) const {
    return address >= base_ && size <= size_ && address - base_ <= size_ - size;
  }
  bool cpu_reaches() const { return cpu_reaches_; }
  // Mapped, and the CPU may read and write it at the same address.
  bool reachable(uint64_t address, uint64_t size) const;
  // For moving by DirectMemory: the windows that these bytes lie in. False: not all of it can be registered.
  bool register_for_moving(uint64_t address, uint64_t size, std::vector<DeviceSpan>* spans);
  bool add_variable(uint64_t owner, uint64_t address, uint64_t size);
  void forget_variables(uint64_t owner) {
    std::erase_if(variables_, [owner](const auto& known) { return known.second.second == owner; });
  }

 private:
  struct Mapping {
    uint64_t size = 0;
    CUmemGenericAllocationHandle memory = 0;
    const ContextState* context = nullptr;
    int device = 0;
    std::byte* moved = nullptr;  // in host memory, and there is no device memory
    uint64_t charge = 0;         // shared
    bool away = false;           // in a checkpoint
    uint32_t peers = 0;          // bits of devices that were given access to this mapping
  };
  class Leaving;
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
  std::map<uint64_t, Mapping>::const_iterator mapping_of(uint64_t address) const;
  CUmemAllocationProp properties_of(int device) const;
  bool move_out(uint64_t address, Mapping& mapping);
  std::byte* copy_to_host(uint64_t address, const Mapping& mapping);
  bool take_off(uint64_t address, Mapping& mapping, std::byte* host);
  CUresult fill(uint64_t address, const Mapping& mapping, const std::byte* from);
  CUresult create(CUmemGenericAllocationHandle* memory, uint64_t size, const CUmemAllocationProp& properties,
                  unsigned long long flags, RoomSource::Wait& wait);
  CUresult with_room(RoomSource::Wait& wait, const std::function<CUresult()>& attempt);
  void release_host(const Mapping& mapping);
  CUresult map_at(uint64_t address, const Mapping& mapping);
  bool is_mapped(uint64_t address, uint64_t size) const;  // a byte of it
  CUresult add_new(uint64_t address, const Mapping& mapping, bool to_be_zeroed);
  void give_back_new(const Mapping& mapping);
  bool can_be_moved(int device) const;
  bool host_may_access(int device) const;
  CUresult set_access(uint64_t address, const Mapping& mapping);
  CUresult set_peer_access(int peer, int device, CUmemAccess_flags flags);
  std::vector<int> peers_of(int device) const;
  // Until at least one more free has taken effect; false when there is none, or `stop` has come.
  bool wait_for_free(std::chrono::steady_clock::time_point stop);
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
  std::set<std::pair<const ContextState*, const ContextState*>> peers_;  // (who, whose) of allow_access()
  size_t moved_ = 0;                      // of them, in host memory
  RoomSource* room_ = nullptr;            // null: a device that is full stays so
  bool cpu_reaches_ = true;               // until a device says no
  std::set<int> cpu_reached_;             // devices whose memory the CPU has read and written
  std::function<bool(CUmemGenericAllocationHandle)> released_;
  std::optional<DeviceWindows> windows_;
  std::multimap<uint64_t, std::pair<uint64_t, uint64_t>> variables_;  // by address: size, owner
  std::mutex mutex_;                      // what follows; held during driver calls
  std::deque<Group> groups_;
  std::set<uint64_t> late_;               // of expect_late(), until they retire
  uint64_t retired_ = 0;                  // highest sequence number of a free that has taken effect
  std::atomic<size_t> pending_{0};        // frees in groups_
};

}  // namespace gpupool::worker
