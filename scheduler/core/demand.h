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
  std::set<std::string> models;  // empty: any
  bool one_host = false;
  HostAmount host;               // on each node that is used
  std::set<const Node*> near;    // wished
  std::set<const Node*> apart;   // never there

  explicit Demand(const pool::Request& request);
  // A whole GPU comes with all of its memory.
  Amount of(const Gpu& gpu) const;
  bool suits(const Gpu& gpu) const;  // with nothing else on it
  // How much of the pool it is, to compare demands by: equal for equal ones, without `near` and `apart`.
  std::string shape() const;
};

// Why nobody could ever make sense of it, if so.
std::optional<std::string> check_request(const pool::Request& request);

}  // namespace gpupool::scheduler
