// Events shared by several processes (CU_EVENT_INTERPROCESS), stored in the device's shared file. All-zero
// memory: no events.
//
// Each record has a number. A waiter waits for the latest number at the time of its call, and continues when
// that record is complete or its process has died, so that it cannot wait for ever. Each process that uses an
// event has a bit in its slot; leave_all() clears the bits of a dead process, which frees its events.
// Thread-safe.
#pragma once
#include <array>
#include <atomic>
#include <cstdint>
#include <memory>

namespace gpupool::softgpu {

constexpr uint32_t kMaxSharedEvents = 4096;  // per device

// Identifies an event to other processes. The id is random, so that it does not match a later event in the
// same slot.
struct SharedEventName {
  uint32_t index;
  std::array<uint64_t, 2> id;
  bool operator==(const SharedEventName&) const = default;
};

class SharedEvent {
 public:
  virtual ~SharedEvent() = default;  // this object's use of the event ends
  virtual SharedEventName name() const = 0;
  // Starts a new record; the caller must call completed() in any case.
  virtual uint64_t record() = 0;
  virtual void completed(uint64_t number) = 0;
  virtual uint64_t latest() const = 0;  // 0: never recorded
  virtual bool passed(uint64_t number) const = 0;
};

struct SharedEvents {
  static constexpr uint32_t kTrackedRecords = 16;  // concurrent records that are tracked separately
  struct RecordState {
    std::atomic<uint64_t> completed;  // highest completed number
    std::atomic<uint64_t> recorder;   // process of the latest record: SharedFile::own_process()
  };
  struct EventSlot {
    std::atomic<uint64_t> users[4];  // one bit per process slot; all zero: free
    std::atomic<uint64_t> id[2];
    std::atomic<uint64_t> recorded;  // latest number
    RecordState records[kTrackedRecords];
    bool used() const { return (users[0].load() | users[1].load() | users[2].load() | users[3].load()) != 0; }
  };
  std::atomic<uint32_t> in_use;  // one more than the highest slot used so far
  EventSlot event_slots[kMaxSharedEvents];

  void leave(uint32_t index, uint32_t process_slot) {
    event_slots[index].users[process_slot / 64].fetch_and(~(uint64_t{1} << process_slot % 64));
  }
  void leave_all(uint32_t process_slot) {
    for (uint32_t i = 0; i < in_use.load() && i < kMaxSharedEvents; ++i) leave(i, process_slot);
  }
};

class SharedFile;
// Return null if all slots are in use, or (open) if there is no event of that name. `owner` keeps the file
// alive.
std::shared_ptr<SharedEvent> make_shared_event(SharedFile& file, std::shared_ptr<void> owner);
std::shared_ptr<SharedEvent> open_shared_event(SharedFile& file, const SharedEventName& name,
                                               std::shared_ptr<void> owner);

}  // namespace gpupool::softgpu
