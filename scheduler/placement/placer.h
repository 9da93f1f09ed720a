// Chooses the nodes and GPUs for a request. Owns the policy and its learned workload; reads the cluster,
// which the caller changes:
//
//   placer.observe(request);                       once for each request that arrives
//   if (auto placement = placer.decide(request)) cluster.allocate(*placement);
//
// A request that fits somewhere is always placed: policies only choose among the nodes that fit. Not
// thread-safe; deterministic for a given seed.
#pragma once
#include <cstdint>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "common/result.h"
#include "scheduler/placement/cluster.h"
#include "scheduler/placement/policy.h"
#include "scheduler/placement/score_index.h"
#include "scheduler/placement/workload.h"

namespace gpupool::placement {

// Why a request is not placed now.
struct Explanation {
  bool ever = false;  // it would fit into the idle cluster
  std::string text;   // one line for the user
  struct Reason {
    std::string what;
    uint32_t nodes = 0;  // number of nodes with this reason
  };
  std::vector<Reason> reasons;  // each node counts once, with its first reason
};

class Placer {
 public:
  struct Options {
    PolicyKind policy = PolicyKind::fragmentation;
    uint64_t seed = 1;                 // for the random policy
    size_t index_bytes_per_gpu = 150;  // limit of the score index; the rest needs a few dozen bytes at most
  };
  Placer(const Cluster& cluster, Options options);

  // Validates a request independently of the cluster: number of GPUs, share, amounts.
  static Result<void> check(const Request& request);

  void observe(const Request& request);
  // Learns this mix of requests and ignores later observe() calls: for the published policy, which knows all
  // tasks in advance.
  void set_workload(const std::vector<Request>& requests);
  std::optional<Placement> decide(const Request& request);
  Explanation explain(const Request& request) const;

  // Returns the bytes used in addition to the cluster: score index, workload, policy tables.
  size_t bytes() const;

 private:
  std::optional<uint32_t> best_slot(const Request& request, const Shape& shape);
  std::optional<uint32_t> random_slot(const Request& request, const Shape& shape);
  std::optional<Placement> decide_over_nodes(const Request& request);
  std::optional<Placement> gather(const Request& request, std::vector<uint32_t> slots);
  bool allowed(const Request& request, uint32_t slot) const;
  const char* obstacle_now(const Request& request, const Shape& shape, uint32_t slot) const;
  Part part_of(const Request& request, uint32_t slot, int gpus);
  uint16_t random_gpus(uint32_t slot, const Shape& shape);
  void count(const Request& request);
  void learn();

  const Cluster& cluster_;
  Options options_;
  std::mt19937_64 random_;
  Workload workload_;
  std::vector<Kind> known_;  // the workload that the policy was made for
  uint64_t known_extremes_ = 0;
  double next_look_ = 1;  // number of arrivals at which to check the workload for drift
  bool fixed_ = false;    // set_workload() was called
  std::unique_ptr<Policy> policy_;
  ScoreIndex index_;
};

}  // namespace gpupool::placement
