// The file in /dev/shm behind a SharedDevice: its layout and the processes that use it. Internal to memory/.
//
// Each process owns a slot and holds a POSIX record lock on that slot's byte. The kernel drops the lock when
// the process dies for any reason, and reports it to other processes, also across PID namespaces. The slot of
// a dead process is cleared by the next process that looks; a file whose processes are all dead is removed by
// the next process that opens any softgpu device. Only its owner writes a slot, or a process that clears it
// under the life-cycle lock, so a crash cannot corrupt the accounts: the sum of the slots is authoritative.
// Thread-safe between join() and leave().
#pragma once
#include <atomic>
#include <cstdint>
#include <map>
#include <mutex>
#include <string>

#include "server/quota/shared_allocations.h"
#include "server/softgpu/memory/shared_event.h"

namespace gpupool::softgpu {

constexpr uint32_t kMaxProcesses = 256;  // per device
constexpr uint32_t kMaxSharedMemories = 1024;

struct alignas(64) ProcessSlot {
  std::atomic<uint64_t> pid;      // for inspection by people; 0: slot free
  std::atomic<uint64_t> charged;  // bytes
  std::atomic<uint32_t> wake;     // futex word: counts the turns handed to this process
  std::atomic<uint32_t> owners;   // counts the processes that have owned the slot
};

struct SharedState {
  std::atomic<uint64_t> magic;  // written last
  uint32_t version;
  uint32_t slot_count;
  uint64_t total_bytes;
  alignas(64) std::atomic<uint32_t> holder;           // slot of the turn's holder + 1; 0: none
  std::atomic<uint32_t> turn;                         // counts changes of the holder
  std::atomic<uint64_t> waiting[kMaxProcesses / 64];  // one bit per slot waiting for the turn
  ProcessSlot slots[kMaxProcesses];
  quota::SharedAllocations<kMaxProcesses, kMaxSharedMemories> shared;  // charged besides ProcessSlot::charged
  SharedEvents events;
};
static_assert(std::atomic<uint64_t>::is_always_lock_free && std::atomic<uint32_t>::is_always_lock_free);

class SharedFile {
 public:
  SharedFile() = default;
  ~SharedFile() { leave(); }
  SharedFile(const SharedFile&) = delete;
  SharedFile& operator=(const SharedFile&) = delete;

  // Opens or creates the file and takes a slot. On failure returns false and sets *error.
  bool join(const std::string& path, uint64_t total_bytes, std::string* error);
  // Gives the slot back; the last process removes the file. In a forked child, which owns no slot, it only
  // unmaps the file.
  void leave();
  // For a process that ends without destroying its objects: removes the file if no other process uses it, but
  // keeps the state usable for threads that still run. The kernel releases the slot's lock.
  void leave_at_exit();
  // Removes a file whose processes were all killed. Must not be called for a file that this process has open.
  static void remove_if_abandoned(const std::string& path);

  // False in a forked child of the process that joined.
  bool in_owner_process() const;
  SharedState& state() const { return *state_; }
  uint32_t slot() const { return slot_; }
  // Returns whether the process that owns (or owned) this slot lives. The caller's own slot counts as living.
  bool is_slot_alive(uint32_t slot) const;
  // own_process() identifies this process among all past and future users of the file; is_process_alive()
  // returns whether the process with that identifier lives.
  uint64_t own_process() const { return uint64_t{state_->slots[slot_].owners} << 16 | slot_; }
  bool is_process_alive(uint64_t process) const;
  void clear_dead_slots();
  // Marks a shared event as used by this process; called once for each object of the event.
  void add_event_user(uint32_t index);
  void remove_event_user(uint32_t index);
  // Runs `change` while no other process or thread runs one; for decisions that depend on the sum of all
  // slots.
  template <typename F>
  auto exclusively(F change) {
    std::lock_guard lock(mutex_);
    lock_byte(kAccountsByte);
    auto result = change();
    unlock_byte(kAccountsByte);
    return result;
  }

 private:
  static constexpr int64_t kLifecycleByte = 0, kAccountsByte = 1, kFirstSlotByte = 64;
  static constexpr uint32_t kNoSlot = UINT32_MAX;
  bool join_locked(const std::string& path, uint64_t total_bytes, bool* retry, std::string* error);
  void clear_dead_slots_locked();
  void release_slot_resources(uint32_t slot);
  bool has_other_processes() const;
  bool lock_byte(int64_t byte) const;
  void unlock_byte(int64_t byte) const;
  bool locked_elsewhere(int64_t byte) const;

  std::string path_;
  int file_ = -1;
  SharedState* state_ = nullptr;
  uint32_t slot_ = kNoSlot;
  int owner_ = 0;     // process id
  std::mutex mutex_;  // needed in addition: record locks do not exclude threads of one process
  std::mutex events_mutex_;
  std::map<uint32_t, uint32_t> events_;  // uses of each event by this process
};

}  // namespace gpupool::softgpu
