// A client's request in the form that the core compares with the resources of nodes. A value: no I/O, any
// thread, no failures.
#pragma once
#include <optional>
#include <set>
#include <string>

#include "scheduler/core/node.h"

namespace gpupool::scheduler {

struct Demand {
  uint32_t gpus = 1;
  uint32_t milli = kWholeGpu;
  uint64_t memory = 0;  // bytes of each GPU; 0: the same fraction of its memory as of its compute
  uint64_t most_memory = UINT64_MAX;  // limit per GPU: the memory left in the tenant's quota
  std::set<std::string> models;       // empty: any
  bool one_host = false;
  HostAmount host;              // of the GPUs' nodes; shared among nodes in proportion to their GPUs
  std::set<const Node*> near;   // preferred nodes
  std::set<const Node*> apart;  // excluded nodes

  explicit Demand(const pool::Request& request);
  // A whole GPU comes with all of its memory.
  Amount of(const Gpu& gpu) const { return {milli, memory_of(gpu.allocations.total.memory)}; }
  // Returns the bytes to allocate on a GPU that has `all` bytes.
  uint64_t memory_of(uint64_t all) const;
  // Returns true if an idle GPU of this model and memory satisfies the demand.
  bool suits(const std::string& model, uint64_t all_memory) const;
  bool suits(const Gpu& gpu) const { return suits(gpu.model, gpu.allocations.total.memory); }
  HostAmount host_beside(uint32_t gpus) const;
  // Returns how many of `gpus` GPUs of one node the host resources `free` suffice for; with `one_host` all or
  // none.
  uint32_t gpus_beside(const HostAmount& free, uint32_t gpus) const;
  // Returns a cache key: equal for demands that ask for the same resources. Ignores `near`, `apart` and
  // `most_memory`.
  std::string shape() const;
};

// Validates the fields of a request. Returns null if they are valid, else the reason.
std::optional<std::string> check_request(const pool::Request& request);

}  // namespace gpupool::scheduler
