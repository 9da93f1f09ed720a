// gpupool's own placement policy: chooses the node and GPU where a placement makes the least free capacity
// useless for the mix of requests seen so far.
//
// The cost is measured in GPU thousandths and has four terms:
//   holes       loss of the worth of a GPU's free share: high where it fits requested sizes (packing.h)
//   unusable    free share that an average next request could not use on this node because of its model,
//               processors, host memory, number of GPUs or share sizes; as in Fragmentation Gradient Descent
//   starved     GPUs that would stay free if the node were filled up, because its CPUs or memory run out
//   dead        worth of the holes for requests that its CPUs or memory no longer suffice for
// docs/adr/0024-placement.md has the reasons and measurements. To be fast (about 0.1 us per GPU of the node),
// requests are grouped into lanes of equal GPU share, and precomputed tables hold per lane how many of its
// requests have enough processors and memory. An immutable value; any thread; does not fail.
#pragma once
#include <array>
#include <cstdint>
#include <vector>

#include "scheduler/placement/packing.h"
#include "scheduler/placement/policy.h"

namespace gpupool::placement {

class Fragmentation : public Policy {
 public:
  explicit Fragmentation(const PolicyInput& input);
  Choice choose(const NodeState& node, const Shape& shape) const override;
  size_t bytes() const override;

  static constexpr size_t kLanes = 32;  // a multiple of the floats in one vector register
  using Lanes = std::array<float, kLanes>;

 private:
  // The free share of GPUs as the lanes can use it: of one GPU from a table by its level, of a node as the
  // sum over its GPUs.
  struct FreeShares {
    alignas(32) Lanes usable{};  // free thousandths of the GPUs on which one more share of the lane fits
    alignas(32) Lanes copies{};  // number of shares of the lane's size that fit
    void add(const FreeShares& other, float times);
  };

  // The requests that may use a GPU model. Models with the same requests share a View.
  struct View {
    // [processors step * steps + memory step]: per lane, the frequency of the requests that these suffice
    // for.
    std::vector<Lanes> enough;
    // [same index][n]: fraction of the requests in the n + 1 lanes of smallest shares that they do not
    // suffice for.
    std::vector<Lanes> dead;
    alignas(32) Lanes demand{};  // frequency times size: thousandths that an average request asks for
  };

  struct Lane {
    uint16_t gpus = 0;
    uint16_t milli = 0;
    double frequency = 0, cpu = 0, memory = 0;  // cpu and memory: frequency-weighted sums over its requests
  };

  int demand_of(const Shape& shape) const;  // thousandths of one GPU; compute or memory, whichever is more
  void sort_into_lanes(const std::vector<Kind>& kinds);
  void measure_needs();
  void build_views(const std::vector<Kind>& kinds, size_t models);
  size_t lane_of(const Shape& shape) const;
  void compute_dead(View& view) const;

  // A node's free resources in the form that useless() evaluates.
  struct Node {
    FreeShares shares;
    std::array<int, kMaxGpusPerNode> levels{};
    int gpus = 0;
    int free = 0;                 // thousandths, over all GPUs
    int64_t cpu = 0, memory = 0;  // thousandths of processors, bytes
  };
  // Returns the sum of all terms but `holes`, whose difference choose() computes GPU by GPU.
  float useless(const Node& node, const View& view) const;

  uint64_t largest_gpu_memory_ = 0;
  std::vector<Lane> lanes_;
  float gpu_requests_ = 0;  // frequency of requests with GPUs
  std::vector<int64_t> cpu_steps_, memory_steps_;
  alignas(32) Lanes per_cpu_{}, per_memory_{};  // requests of the lane that one unit suffices for
  alignas(32) Lanes inverse_gpus_{};
  std::vector<FreeShares> free_shares_;  // [level]
  std::vector<View> views_;
  std::array<uint8_t, kMaxModels> view_of_model_{};
  HoleWorth holes_{};
  std::vector<uint8_t> by_share_;                 // lanes of one GPU, smallest shares first
  std::array<uint8_t, kWholeGpu + 1> fitting_{};  // [level]: how many of by_share_ fit
};

}  // namespace gpupool::placement
