// Random clusters and requests: ScoreIndex finds the same node as a full scan, and released resources are
// complete.
#include <random>

#include "scheduler/placement/placer.h"
#include "scheduler/placement/score_index.h"
#include "tests/scheduler/placement/nodes.h"
#include "tests/support/catch.h"

using namespace gpupool::placement;

namespace {

class Dice {
 public:
  explicit Dice(uint64_t seed) : random_(seed) {}
  int below(int count) { return static_cast<int>(random_() % static_cast<uint64_t>(count)); }
  int of(std::initializer_list<int> values) { return values.begin()[below(static_cast<int>(values.size()))]; }

 private:
  std::mt19937_64 random_;
};

NodeSpec some_node(Dice& dice, int number) {
  NodeSpec spec = node("n" + std::to_string(number), dice.of({0, 1, 2, 4, 8, 16}),
                       std::string(1, static_cast<char>('A' + dice.below(3))), dice.of({8, 32, 96}) * 1000,
                       static_cast<uint64_t>(dice.of({0, 16, 80})) * kGib);
  spec.zone = "z" + std::to_string(dice.below(2));
  spec.rack = "r" + std::to_string(dice.below(3));
  return spec;
}

Request some_request(Dice& dice) {
  Request request;
  request.gpus = dice.of({0, 1, 1, 1, 1, 2, 4, 8});
  request.milli = request.gpus == 0   ? 0
                  : request.gpus == 1 ? dice.of({1000, 810, 470, 320, 190, 1})
                                      : dice.of({1000, 1000, 500});
  request.cpu_milli = dice.of({0, 500, 4000, 12'000}) + (request.gpus == 0 ? 100 : 0);
  request.host_memory = static_cast<int64_t>(dice.of({0, 1, 60})) << 30;
  if (request.gpus > 0 && request.milli < kWholeGpu)
    request.memory_bytes = static_cast<uint64_t>(dice.of({0, 0, 3, 9})) * kGib;
  if (request.gpus > 0 && dice.below(4) == 0)
    request.models = {std::string(1, static_cast<char>('A' + dice.below(4)))};
  return request;
}

// Returns the first node with the least cost, by a full scan.
std::optional<uint32_t> scan(const Cluster& cluster, const Shape& shape, const Policy& policy) {
  std::optional<uint32_t> best;
  float least = kImpossible;
  for (uint32_t slot = 0; slot < cluster.slots(); ++slot) {
    if (!cluster.state(slot).fits(shape)) continue;
    const float cost = policy.choose(cluster.state(slot), shape).cost;
    if (cost < least) {
      least = cost;
      best = slot;
    }
  }
  return best;
}

}  // namespace

TEST_CASE("the score index agrees with a full scan after random changes") {
  for (const PolicyKind kind : {PolicyKind::fragmentation, PolicyKind::fgd, PolicyKind::best_fit,
                                PolicyKind::dot_product, PolicyKind::gpu_packing, PolicyKind::spread}) {
    Dice dice(static_cast<uint64_t>(kind) + 11);
    Cluster cluster;
    int nodes = 0;
    while (nodes < 150) REQUIRE(cluster.add(some_node(dice, nodes++)));
    Workload workload;
    for (int i = 0; i < 400; ++i) workload.observe(cluster.shape_of(some_request(dice)));
    const auto policy =
        make_policy(kind, {workload.kinds(), cluster.models(), cluster.extremes(), cluster.families()});
    ScoreIndex index(cluster, 60 * 150 * sizeof(float));  // too small for all shapes
    std::vector<Placement> placed;
    for (int step = 0; step < 3000; ++step) {
      const int what = dice.below(20);
      const NodeId node = cluster.id(static_cast<uint32_t>(dice.below(static_cast<int>(cluster.slots()))));
      if (what == 0) static_cast<void>(cluster.set_drained(node, dice.below(2) == 0));
      if (what == 1 && cluster.has(node)) REQUIRE(cluster.remove(node));
      if (what == 1) REQUIRE(cluster.add(some_node(dice, nodes++)));
      if (what < 8 && !placed.empty()) {
        const size_t gone = static_cast<size_t>(dice.below(static_cast<int>(placed.size())));
        REQUIRE(cluster.release(placed[gone]));
        placed.erase(placed.begin() + static_cast<std::ptrdiff_t>(gone));
      }
      const Request request = some_request(dice);
      const Shape shape = cluster.shape_of(request);
      const auto expected = scan(cluster, shape, *policy);
      const auto found = index.best(shape, *policy);
      REQUIRE(found == expected);
      const auto odd = [](uint32_t slot) { return slot % 2 == 1; };
      if (const auto other = index.best(shape, *policy, odd)) CHECK(odd(*other));
      if (!found) continue;
      Part part{
          .node = cluster.id(*found),
          .gpu_mask = policy->choose(cluster.state(*found), shape).gpu_mask,
          .milli = shape.milli,
          .memory_bytes = shape.milli == kWholeGpu ? cluster.state(*found).gpu_memory : shape.memory_bytes,
          .cpu_milli = shape.cpu_milli,
          .host_memory = shape.host_memory};
      CHECK(std::popcount(part.gpu_mask) == shape.gpus);
      placed.push_back({{part}, ""});
      REQUIRE(cluster.allocate(placed.back()));
    }
  }
}

TEST_CASE("renewed costs are complete after a few decisions") {
  Cluster cluster;
  for (int i = 0; i < 5000; ++i) REQUIRE(cluster.add(node("n" + std::to_string(i), i % 2 == 0 ? 2 : 4)));
  const Shape shape = cluster.shape_of(share(500));
  const auto binpack = make_policy(PolicyKind::binpack, {}), spread = make_policy(PolicyKind::spread, {});
  ScoreIndex index(cluster, 1 << 20);
  CHECK(index.best(shape, *binpack) == 0u);
  index.renew();
  for (int i = 0; i < 5; ++i) REQUIRE(index.best(shape, *spread));
  CHECK(index.best(shape, *spread) == scan(cluster, shape, *spread));
  CHECK(index.best(shape, *spread) == 1u);
}

TEST_CASE("shapes that exceed the cache are placed by sampling and cached on repetition") {
  Cluster cluster;
  for (int i = 0; i < 5000; ++i) REQUIRE(cluster.add(node("n" + std::to_string(i), 1)));
  const NodeId last = *cluster.add(node("last", 2));
  const auto policy = make_policy(PolicyKind::spread, {});
  ScoreIndex index(cluster, 2 * 5001 * sizeof(float));  // room for one shape
  CHECK(index.best(cluster.shape_of(share(1)), *policy) == last.slot);
  CHECK(index.shapes() == 1);
  CHECK(index.best(cluster.shape_of(whole(2)), *policy) == last.slot);  // the only node that fits
  CHECK(index.best(cluster.shape_of(share(2)), *policy));               // any node that fits
  CHECK(index.best(cluster.shape_of(share(3)), *policy, [](uint32_t slot) { return slot == 77; }) == 77u);
  CHECK_FALSE(index.best(cluster.shape_of(whole(3)), *policy));
  CHECK(index.best(cluster.shape_of(share(2)), *policy) == last.slot);  // second query: full evaluation
  CHECK(index.shapes() == 1);
  CHECK(index.bytes() < 100'000);
}

TEST_CASE("a request is placed if it fits anywhere and releases restore the cluster") {
  for (uint64_t seed = 1; seed <= 6; ++seed) {
    Dice dice(seed);
    Cluster cluster;
    for (int i = 0; i < 12; ++i) REQUIRE(cluster.add(some_node(dice, i)));
    Placer placer(cluster,
                  {.policy = seed % 3 == 0 ? PolicyKind::random : PolicyKind::fragmentation, .seed = seed});
    std::vector<Placement> placed;
    for (int step = 0; step < 1500; ++step) {
      if (dice.below(3) == 0 && !placed.empty()) {
        REQUIRE(cluster.release(placed.back()));
        placed.pop_back();
      }
      Request request = some_request(dice);
      if (dice.below(3) == 0) request.spread = static_cast<Distance>(dice.below(4));
      placer.observe(request);
      const auto placement = placer.decide(request);
      bool fits = false;
      int64_t together = 0;  // fitting GPUs of all nodes
      for (uint32_t slot = 0; slot < cluster.slots(); ++slot) {
        fits |= cluster.state(slot).fits(cluster.shape_of(request));
        int here = cluster.state(slot).fitting_gpus(cluster.shape_of(request, 1));
        while (here > 0 && !cluster.state(slot).fits(cluster.shape_of(request, here))) --here;
        together += here;
      }
      if (request.spread == Distance::any && request.gpus > 1) fits |= together >= request.gpus;
      if (request.spread == Distance::host || request.spread == Distance::any || request.gpus <= 1) {
        REQUIRE(placement.has_value() == fits);
      } else if (fits) {
        REQUIRE(placement.has_value());
      }
      const Explanation explanation = placer.explain(request);
      if (placement) CHECK(explanation.ever);
      CHECK((explanation.text.find("fits now") != std::string::npos) == placement.has_value());
      if (!placement) continue;
      int gpus = 0;
      for (const Part& part : placement->parts) {
        gpus += std::popcount(part.gpu_mask);
        CHECK(cluster.distance(part.node.slot, placement->parts[0].node.slot) <= request.spread);
      }
      CHECK(gpus == request.gpus);
      REQUIRE(cluster.allocate(*placement));
      placed.push_back(*placement);
    }
    for (const Placement& placement : placed) REQUIRE(cluster.release(placement));
    CHECK(cluster.free_milli() == cluster.total_milli());
    for (uint32_t slot = 0; slot < cluster.slots(); ++slot)
      CHECK(cluster.state(slot) == cluster.empty_state(slot));
  }
}
