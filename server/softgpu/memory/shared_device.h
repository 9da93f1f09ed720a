// A softgpu device as one object per machine: processes that open the same device of the same instance share its memory
// size and take turns on it in time slices, as contexts of several processes do on a GPU.
//
// The state lives in a shared-memory file named after the instance (environment SOFTGPU_INSTANCE, default one per user)
// and the device's number. A process that dies gives back what it had charged and its turn; the next process to look
// notices. The last process to leave removes the file. Thread-safe.
#pragma once
#include <cstdint>
#include <memory>
#include <string>

#include "server/softgpu/memory/address_space.h"
#include "server/softgpu/memory/shared_event.h"

namespace gpupool::softgpu {

// Time slices. A process must hold the turn while blocks of its grids run; between blocks it calls still_mine().
class DeviceTurns {
 public:
  static constexpr uint64_t kSliceNanoseconds = 2'000'000;
  // A holder that does not give the turn back so long after its slice (one endless block) no longer keeps others waiting:
  // they go on beside it, as a GPU would preempt it.
  static constexpr uint64_t kOverdueNanoseconds = 50'000'000;

  virtual ~DeviceTurns() = default;
  virtual void acquire() = 0;        // blocks until this process has the turn; nests (counted)
  virtual void release() = 0;
  // True while this process may go on; false when its slice (2 ms) is over and another process waits: then release()
  // and acquire() again. Costs a few loads when nobody waits.
  virtual bool still_mine() = 0;
};

class SharedDevice {
 public:
  // Device memory in bytes applies when this process is the first to open the device; later ones see what the first set.
  // Null: refused (a file that is not ours or not understood, too many processes, no reserved range); `error`, when
  // given, gets one line that says why. Opening twice in one process gives the same object.
  static std::shared_ptr<SharedDevice> open(int ordinal, uint64_t memory_bytes, std::string* error = nullptr);
  virtual ~SharedDevice() = default;
  virtual uint64_t total_bytes() const = 0;
  virtual uint64_t free_bytes() const = 0;  // total minus what all living processes have charged
  virtual uint64_t process_bytes() const = 0;  // of what is charged, by this process and not shared with others
  // Charges `size` bytes (a multiple of kGranule for VMM; anything for plain allocations, for which DeviceHeap is the
  // better way) and returns memory, or null when the device has not that much left. The memory is zeroed and un-charges
  // itself when destroyed.
  virtual std::shared_ptr<Memory> allocate(uint64_t size) = 0;
  virtual DeviceTurns& turns() = 0;
  // What this process has charged by itself counts for nothing; and counts again. False: there is not that much left.
  virtual void park() = 0;
  virtual bool unpark() = 0;

  // --- For other processes that have this device open ---
  uint64_t key() const { return key_; }  // the same in all of them, and no other device's
  // As the functions of these names in address_space.h. Memory of several processes is charged once, until the last of them has let
  // go of it. import_memory(): *refused: there is not that much left (nobody has it any more), else it is no memory of this device.
  virtual int export_memory(const std::shared_ptr<Memory>& memory, uint64_t handle_types, int* kept = nullptr) = 0;
  virtual std::shared_ptr<Memory> import_memory(int descriptor, bool* refused) = 0;
  // Null: there are too many; (open) there is none of that name.
  virtual std::shared_ptr<SharedEvent> make_event() = 0;
  virtual std::shared_ptr<SharedEvent> open_event(const SharedEventName& name) = 0;

 protected:
  uint64_t key_ = 0;
};

}  // namespace gpupool::softgpu
