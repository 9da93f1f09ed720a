// The program's pinned memory as registered with a session's RDMA device, so that the server reads and writes
// it directly. Whole allocations are registered at their first large copy, and stay registered until they are
// freed or evicted.
//
// Number and size are bounded; the least recently used registration that no copy uses is evicted. If nothing
// more can be registered (RLIMIT_MEMLOCK), copies use another path. Thread-safe. Never call it with a lock of
// the receiver held, except to release a Lease.
#pragma once
#include <list>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <unordered_map>

#include "client/memory/host_memory.h"
#include "protocol/transport/direct_memory.h"

namespace gpupool::client {

class RegisteredMemory {
 public:
  struct Limits {
    size_t allocations = 1024;
    uint64_t bytes = ~uint64_t{0};
  };
  // Keeps the memory registered. Each copy in progress holds one.
  struct Lease {
    uint32_t key = 0;
    std::shared_ptr<const void> held;
  };

  // Call before any other function. `memory` null: the connection has no RDMA device.
  void start(transport::DirectMemory* memory, const Limits& limits);
  bool usable() const { return memory_ != nullptr; }
  // Returns nullopt if the allocation cannot be registered.
  std::optional<Lease> use(const HostAllocation& allocation);
  // Call before the allocation is freed. Copies still in progress keep the registration until they are over.
  void forget(uint64_t allocation);
  size_t size();

 private:
  class Registration {
   public:
    Registration(transport::DirectMemory& memory, const transport::DirectMemory::Region& region,
                 uint64_t bytes)
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
  std::mutex mutex_;                           // guards the members below
  std::unordered_map<uint64_t, Known> known_;  // by the allocation's id
  std::list<uint64_t> order_;                  // ids, most recently used first
  uint64_t bytes_ = 0;
  std::set<uint64_t> refused_;  // ids whose registration failed; cleared when a registration is released
  bool explained_ = false;
};

}  // namespace gpupool::client
