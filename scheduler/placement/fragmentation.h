// gpupool's own policy: the node and GPU where the least of what is free becomes useless for what is asked for here.
//
// What a placement makes useless is measured in GPU thousandths, against the mix of requests seen so far, in four parts:
//   holes       the worth of a GPU's free share to the shares that are asked for (packing.h): odd shares find their complements
//   unusable    free share that an average next request could not use on this node: model, processors, host memory, number of whole
//               GPUs, size of the free share; as Fragmentation Gradient Descent, which sees no further than this one request
//   starved     GPUs that would stay free if the node were filled up, because its processors or host memory run out before
//   dead        the worth of holes to those shares for which the node has no longer enough processors or host memory
// docs/adr/0024-placement.md has the reasons and the figures. A cost takes about a tenth of a microsecond for each GPU of the node: requests are
// sorted into lanes of equal GPU share, and per lane the tables tell how many of it would find enough processors and memory.
#pragma once
#include <array>
#include <cstdint>
#include <vector>

#include "scheduler/placement/packing.h"
#include "scheduler/placement/policy.h"

namespace gpupool::placement {

class Fragmentation : public Policy {
 public:
  explicit Fragmentation(const Surroundings& surroundings);
  Choice choose(const NodeState& node, const Shape& shape) const override;
  size_t bytes() const override;

  static constexpr size_t kLanes = 32;  // a multiple of what one vector instruction adds
  using Lanes = std::array<float, kLanes>;

 private:
  // What GPUs offer to the lanes: a GPU's is looked up by its level, a node's is the sum.
  struct Offer {
    alignas(32) Lanes usable{};   // thousandths of GPUs that one more of the lane would fit on
    alignas(32) Lanes copies{};   // how many shares of the lane's size fit
    void add(const Offer& other, float times);
  };

  // The requests as one or several models see them: those that want other models are not among them.
  struct View {
    std::vector<Lanes> enough;    // [processors step][memory step]: frequency of the lane's requests for which a node's are enough
    std::vector<Lanes> dead;      // [the same][n]: of the requests in the n + 1 lanes of the smallest shares, the part for which they are not
    alignas(32) Lanes demand{};   // frequency times size: thousandths asked for by an average request
  };

  struct Lane {
    uint16_t gpus = 0;
    uint16_t milli = 0;
    double frequency = 0, cpu = 0, memory = 0;  // cpu and memory: sums over its requests, times frequency
  };

  int demand_of(const Shape& shape) const;  // thousandths of one GPU
  void sort_into_lanes(const std::vector<Kind>& kinds);
  void measure_needs();
  void look_from_models(const std::vector<Kind>& kinds, size_t models);
  size_t lane_of(const Shape& shape) const;
  void bury(View& view) const;

  // A node in these terms.
  struct Node {
    Offer offer;
    std::array<int, kMaxGpusPerNode> levels{};
    int gpus = 0;
    int free = 0;                 // thousandths, of all
    int64_t cpu = 0, memory = 0;
  };
  // All but the holes, which are cheaper to compare GPU by GPU.
  float useless(const Node& node, const View& view) const;

  uint64_t largest_gpu_memory_ = 0;
  std::vector<Lane> lanes_;
  float gpu_requests_ = 0;                      // how many of all requests want a GPU
  std::vector<int64_t> cpu_steps_, memory_steps_;
  alignas(32) Lanes per_cpu_{}, per_memory_{};  // copies of the lane that one unit is enough for
  alignas(32) Lanes inverse_gpus_{};
  std::vector<Offer> offers_;                   // [level]
  std::vector<View> views_;
  std::array<uint8_t, kMaxModels> view_of_model_{};
  HoleWorth holes_{};
  std::vector<uint8_t> by_share_;               // the lanes of one GPU, the smallest shares first
  std::array<uint8_t, kWholeGpu + 1> fitting_{};  // [level]: how many of them fit
};

}  // namespace gpupool::placement
