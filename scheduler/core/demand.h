// A request in the form that is compared with what nodes have. Pure.
#pragma once
#include <optional>
#include <set>
#include <string>

#include "scheduler/core/node.h"

namespace gpupool::scheduler {

struct Demand {
  uint32_t gpus = 1;
  uint32_t milli = kWholeGpu;
  uint64_t memory = 0;  // 0: the same part of it as of the compute
  uint64_t most_memory = UINT64_MAX;  // that may be taken of one GPU: what the tenant's quota leaves
  std::set<std::string> models;  // empty: any
  bool one_host = false;
  HostAmount host;               // beside them; where several nodes are used, on each as many as its GPUs' even part
  std::set<const Node*> near;    // wished
  std::set<const Node*> apart;   // never there

  explicit Demand(const pool::Request& request);
  // A whole GPU comes with all of its memory.
  Amount of(const Gpu& gpu) const { return {milli, memory_of(gpu.book.total.memory)}; }
  uint64_t memory_of(uint64_t all) const;  // of a GPU that has `all`
  // Whether a GPU of that kind can be given, with nothing else on it.
  bool suits(const std::string& model, uint64_t all_memory) const;
  bool suits(const Gpu& gpu) const { return suits(gpu.model, gpu.book.total.memory); }
  HostAmount host_beside(uint32_t gpus) const;
  // How many of `gpus` GPUs of one node can be used with so much of the host; for one host all, or none.
  uint32_t gpus_beside(const HostAmount& free, uint32_t gpus) const;
  // How much of the pool it is, to compare demands by: equal for equal ones, without `near` and `apart`.
  std::string shape() const;
};

// Why nobody could ever make sense of it, if so.
std::optional<std::string> check_request(const pool::Request& request);

}  // namespace gpupool::scheduler
