// Decides where a request goes. Owns the policy and what it has learned; refers to the cluster, which the caller changes:
//
//   placer.observe(request);                       once for each request that arrives
//   if (auto placement = placer.decide(request)) cluster.allocate(*placement);
//
// A request is placed wherever it fits: policies choose among nodes, they never refuse. Not thread-safe; deterministic.
#pragma once
#include <cstdint>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "protocol/wire/result.h"
#include "scheduler/placement/cluster.h"
#include "scheduler/placement/policy.h"
#include "scheduler/placement/score_index.h"
#include "scheduler/placement/workload.h"

namespace gpupool::placement {

// Why a request is not placed now.
struct Explanation {
  bool ever = false;                  // it would fit if nothing else were placed
  std::string text;                   // one line for a person
  struct Reason {
    std::string what;
    uint32_t nodes = 0;               // that it keeps out
  };
  std::vector<Reason> reasons;        // each node counts once, for the first thing in the way
};

class Placer {
 public:
  struct Options {
    PolicyKind policy = PolicyKind::fragmentation;
    uint64_t seed = 1;                // of the random policy
    size_t index_bytes_per_gpu = 150; // for remembered costs; the rest of the library needs a few dozen at most
  };
  Placer(const Cluster& cluster, Options options);

  // What makes a request impossible whatever the pool: no request of 0 thousandths, no distance smaller than its GPUs need, ...
  static Result<void> check(const Request& request);

  void observe(const Request& request);
  // Learn this mix of requests at once, and no other: for the published policy, which knows the future.
  void know(const std::vector<Request>& requests);
  std::optional<Placement> decide(const Request& request);
  Explanation explain(const Request& request) const;

  // Bytes beyond the inventory: costs, workload, tables.
  size_t bytes() const;

 private:
  std::optional<uint32_t> best_slot(const Request& request, const Shape& shape);
  std::optional<uint32_t> random_slot(const Request& request, const Shape& shape);
  std::optional<Placement> decide_over_nodes(const Request& request);
  std::optional<Placement> gather(const Request& request, std::vector<uint32_t> slots);
  bool allowed(const Request& request, uint32_t slot) const;
  Part part_of(const Request& request, uint32_t slot, int gpus);
  uint16_t random_gpus(uint32_t slot, const Shape& shape);
  void count(const Request& request);
  void learn();

  const Cluster& cluster_;
  Options options_;
  std::mt19937_64 random_;
  Workload workload_;
  std::vector<Kind> known_;           // that the policy was made with
  uint64_t known_extremes_ = 0;
  double next_look_ = 1;              // arrivals, then it is asked whether the mix has changed
  bool fixed_ = false;                // know() was called
  std::unique_ptr<Policy> policy_;
  ScoreIndex index_;
};

}  // namespace gpupool::placement
