// The program's pinned memory as the device of an rdma connection knows it: one session's registrations, by which its server
// reads and writes that memory itself. Whole allocations, at the first large copy of each, until they are freed.
//
// Bounded: what has not been used for the longest time gives way. Where nothing more can be registered (RLIMIT_MEMLOCK)
// copies take another way. Any thread; never called with a lock of the receiver's held, but for the end of a lease.
#pragma once
#include <list>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <unordered_map>

#include "client/host_memory.h"
#include "protocol/transport/direct_memory.h"

namespace gpupool::client {

class RegisteredMemory {
 public:
  struct Limits {
    size_t allocations = 1024;
    uint64_t bytes = ~uint64_t{0};
  };
  // As long as it is held the memory stays registered: by each copy under way.
  struct Lease {
    uint32_t key = 0;
    std::shared_ptr<const void> held;
  };

  // Before anything else; null: there is nothing to register with.
  void start(transport::DirectMemory* memory, const Limits& limits);
  bool usable() const { return memory_ != nullptr; }
  // Nullopt: it cannot be registered.
  std::optional<Lease> use(const HostAllocation& allocation);
  // Before the allocation goes: it has copies under way only where the program has not waited for them, and stays registered
  // for those.
  void forget(uint64_t allocation);
  size_t size();

 private:
  class Registration {
   public:
    Registration(transport::DirectMemory& memory, const transport::DirectMemory::Region& region, uint64_t bytes)
        : bytes(bytes), region(region), memory_(memory) {}
    ~Registration() { memory_.remove(region); }
    Registration(const Registration&) = delete;
    Registration& operator=(const Registration&) = delete;
    const uint64_t bytes;
    const transport::DirectMemory::Region region;

   private:
    transport::DirectMemory& memory_;
  };
  struct Known {
    std::shared_ptr<const Registration> registration;
    std::list<uint64_t>::iterator used;
  };
  bool make_room();
  void erase(std::unordered_map<uint64_t, Known>::iterator known);

  transport::DirectMemory* memory_ = nullptr;
  Limits limits_;
  std::mutex mutex_;                            // what follows
  std::unordered_map<uint64_t, Known> known_;   // by the allocation's id
  std::list<uint64_t> order_;                   // the ids, the last used in front
  uint64_t bytes_ = 0;
  std::set<uint64_t> refused_;                  // ids that could not be registered, and nothing has been let go of since
  bool explained_ = false;
};

}  // namespace gpupool::client
