// Events that several processes record and wait for (CU_EVENT_INTERPROCESS), in the device's shared file. All zeroes: none.
//
// A record has a number. Who waits, waits for the latest number of that moment, and goes on when that record is complete, or
// its process is dead: nobody waits for what will never come. A process that uses an event has a bit there, so that what a
// dead one left is free again (leave_all).
#pragma once
#include <array>
#include <atomic>
#include <cstdint>
#include <memory>

namespace gpupool::softgpu {

constexpr uint32_t kMaxSharedEvents = 4096;  // per device

// What another process needs to find it. The id is random, so that it cannot be mistaken for a later event's.
struct SharedEventName {
  uint32_t index;
  std::array<uint64_t, 2> id;
  bool operator==(const SharedEventName&) const = default;
};

class SharedEvent {
 public:
  virtual ~SharedEvent() = default;  // this process uses it no more
  virtual SharedEventName name() const = 0;
  // A new record; completed() must follow, whatever happens.
  virtual uint64_t record() = 0;
  virtual void completed(uint64_t number) = 0;
  virtual uint64_t latest() const = 0;  // 0: never recorded
  virtual bool passed(uint64_t number) const = 0;
};

struct SharedEvents {
  static constexpr uint32_t kMarks = 16;  // records under way that are told apart
  struct Mark {
    std::atomic<uint64_t> completed;  // the highest number
    std::atomic<uint64_t> recorder;   // of the last: SharedFile::self()
  };
  struct Place {
    std::atomic<uint64_t> users[4];  // a bit per slot; none: free
    std::atomic<uint64_t> id[2];
    std::atomic<uint64_t> recorded;  // the latest number
    Mark marks[kMarks];
    bool used() const { return (users[0].load() | users[1].load() | users[2].load() | users[3].load()) != 0; }
  };
  std::atomic<uint32_t> in_use;  // places that were ever taken are below
  Place places[kMaxSharedEvents];

  void leave(uint32_t place, uint32_t slot) { places[place].users[slot / 64].fetch_and(~(uint64_t{1} << slot % 64)); }
  void leave_all(uint32_t slot) {
    for (uint32_t i = 0; i < in_use.load() && i < kMaxSharedEvents; ++i) leave(i, slot);
  }
};

class SharedFile;
// Null: there are too many, or (open) none of that name. `owner`: whose the file is.
std::shared_ptr<SharedEvent> make_shared_event(SharedFile& file, std::shared_ptr<void> owner);
std::shared_ptr<SharedEvent> open_shared_event(SharedFile& file, const SharedEventName& name, std::shared_ptr<void> owner);

}  // namespace gpupool::softgpu
