// A softgpu device that several processes of a machine may share. Processes that open the same device of the
// same instance share its memory size and take turns on it in time slices, as contexts of several processes
// do on a GPU. Used by runtime/.
//
// The state lives in a file in /dev/shm named after the user, the instance (environment SOFTGPU_INSTANCE,
// default "default") and the device's number. The charges and the turn of a process that died are released by
// the next process that looks. The last process to leave removes the file. Thread-safe.
#pragma once
#include <cstdint>
#include <memory>
#include <string>

#include "server/softgpu/memory/address_space.h"
#include "server/softgpu/memory/shared_event.h"

namespace gpupool::softgpu {

// Time slices. A process must hold the turn while blocks of its grids run; between blocks it calls
// keeps_turn().
class DeviceTurns {
 public:
  static constexpr uint64_t kSliceNanoseconds = 2'000'000;
  // A holder that keeps the turn this long after its slice (one endless block) loses it: the waiting process
  // continues beside it, approximating a GPU's preemption.
  static constexpr uint64_t kTurnTimeoutNanoseconds = 50'000'000;

  virtual ~DeviceTurns() = default;
  virtual void acquire() = 0;  // blocks until this process has the turn; calls nest
  virtual void release() = 0;
  // Returns false if the slice (kSliceNanoseconds) is over and another process waits, or if the turn was
  // taken away; the caller then calls release() and acquire(). Costs a few loads if no process waits.
  virtual bool keeps_turn() = 0;
};

class SharedDevice {
 public:
  // memory_bytes sets the size of the device's memory if this process is the first to open it; later ones see
  // that size. Returns null if refused (file of another user or version, too many processes, no reserved
  // range); *error, if not null, receives one line of explanation. Opening a device twice in one process
  // returns the same object.
  static std::shared_ptr<SharedDevice> open(int ordinal, uint64_t memory_bytes, std::string* error = nullptr);
  virtual ~SharedDevice() = default;
  virtual uint64_t total_bytes() const = 0;
  virtual uint64_t free_bytes() const = 0;     // total minus the charges of all living processes
  virtual uint64_t process_bytes() const = 0;  // charged by this process and not shared with others
  // Charges `size` bytes and returns zeroed memory, which is uncharged when destroyed; null if the device has
  // too little free memory. VMM allocations need multiples of kGranule; use DeviceHeap for plain allocations.
  virtual std::shared_ptr<Memory> allocate(uint64_t size) = 0;
  virtual DeviceTurns& turns() = 0;
  // park() uncharges all memory that this process does not share with others; unpark() charges it again and
  // returns false if too little is free. Used for checkpoints.
  virtual void park() = 0;
  virtual bool unpark() = 0;

  // --- Memory and events shared with other processes that have this device open ---
  uint64_t key() const { return key_; }  // the same in all these processes, different for other devices
  // As the functions of these names in address_space.h. Shared memory is charged once, until the last process
  // releases it. If import_memory() returns null, *refused tells whether the device has too little free
  // memory to charge it again (no other process holds it any more); else the descriptor is not memory of this
  // device.
  virtual int export_memory(const std::shared_ptr<Memory>& memory, uint64_t handle_types,
                            int* kept = nullptr) = 0;
  virtual std::shared_ptr<Memory> import_memory(int descriptor, bool* refused) = 0;
  // Return null if all kMaxSharedEvents are in use, or (open_event) if there is no event of that name.
  virtual std::shared_ptr<SharedEvent> make_event() = 0;
  virtual std::shared_ptr<SharedEvent> open_event(const SharedEventName& name) = 0;

 protected:
  uint64_t key_ = 0;
};

}  // namespace gpupool::softgpu
