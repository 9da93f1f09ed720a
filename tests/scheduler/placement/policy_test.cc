// Tests of the policies' preferences in small examples.
#include "scheduler/placement/fragmentation.h"
#include "scheduler/placement/placer.h"
#include "tests/scheduler/placement/nodes.h"
#include "tests/support/catch.h"

using namespace gpupool::placement;

namespace {

// Three nodes with two GPUs each. On b, a quarter of a GPU is allocated; on c, one GPU.
struct Three {
  Three() {
    for (const char* name : {"a", "b", "c"}) REQUIRE(cluster.add(node(name, 2)));
    REQUIRE(cluster.allocate(
        {{{.node = *cluster.find("b"), .gpu_mask = 0b10, .milli = 250, .cpu_milli = 60'000}}, ""}));
    REQUIRE(cluster.allocate({{{.node = *cluster.find("c"), .gpu_mask = 0b01, .milli = 1000}}, ""}));
  }
  // Returns the node and GPUs of the placement, e.g. "b1" for GPU 1 of node b.
  std::string decide(PolicyKind policy, const Request& request) {
    Placer placer(cluster, {.policy = policy});
    const auto placement = placer.decide(request);
    if (!placement) return "";
    std::string text = cluster.spec(placement->parts.at(0).node).name;
    for (int gpu = 0; gpu < kMaxGpusPerNode; ++gpu) {
      if ((placement->parts[0].gpu_mask >> gpu & 1) != 0) text += std::to_string(gpu);
    }
    return text;
  }
  Cluster cluster;
};

}  // namespace

TEST_CASE("the simple policies") {
  Three three;
  CHECK(three.decide(PolicyKind::binpack, share(500)) == "c1");
  CHECK(three.decide(PolicyKind::spread, share(500)) == "a0");
  CHECK(three.decide(PolicyKind::binpack, whole(2)) == "a01");
  CHECK(three.decide(PolicyKind::gpu_packing, share(500)) == "b1");  // a GPU in use
  CHECK(three.decide(PolicyKind::gpu_packing, share(800)) == "b0");  // no GPU in use fits: a node in use
  CHECK(three.decide(PolicyKind::gpu_packing, whole(2)) == "a01");
  // Best fit: b, with 4 CPUs and 1.25 GPUs left, has less left than c, with 64 CPUs and half a GPU.
  CHECK(three.decide(PolicyKind::best_fit, share(500)) == "b1");
  CHECK(three.decide(PolicyKind::best_fit, share(500, 5'000)) == "c1");
  // Dot product: c has the least GPU free; b has the fewest CPUs, which matters for requests with CPUs.
  CHECK(three.decide(PolicyKind::dot_product, share(500)) == "c1");
  CHECK(three.decide(PolicyKind::dot_product, share(100, 4'000)) == "b1");
  for (const PolicyKind policy : {PolicyKind::binpack, PolicyKind::spread, PolicyKind::best_fit,
                                  PolicyKind::dot_product, PolicyKind::random, PolicyKind::fragmentation}) {
    CHECK(three.decide(policy, whole(3)).empty());
    CHECK(three.decide(policy, share(1, 65'000)).empty());
  }
}

TEST_CASE("random choices are spread over all nodes that fit, and repeat with their seed") {
  Cluster cluster;
  for (int i = 0; i < 4; ++i) REQUIRE(cluster.add(node("n" + std::to_string(i), 1)));
  REQUIRE(cluster.set_drained(*cluster.find("n3"), true));
  std::array<int, 4> hits{};
  std::string first, second;
  for (std::string* const run : {&first, &second}) {
    Placer placer(cluster, {.policy = PolicyKind::random, .seed = 7});
    for (int i = 0; i < 300; ++i) {
      const uint32_t slot = placer.decide(share(100))->parts[0].node.slot;
      *run += static_cast<char>('0' + slot);
      ++hits[slot];
    }
  }
  CHECK(first == second);
  for (int i = 0; i < 3; ++i) CHECK(hits[i] > 120);
  CHECK(hits[3] == 0);
}

TEST_CASE("fragmentation keeps a free share for the request that needs it") {
  // Two shares of 470 or three of 320 fill a GPU best: the 530 beside a 470 are kept for another 470.
  Cluster cluster;
  REQUIRE(cluster.add(node("a", 2)));
  Placer placer(cluster, {});
  for (int i = 0; i < 300; ++i) placer.observe(share(i % 2 == 0 ? 470 : 320));
  const auto place = [&](int milli) {
    const auto placement = placer.decide(share(milli));
    REQUIRE(placement);
    REQUIRE(cluster.allocate(*placement));
    return placement->parts[0].gpu_mask;
  };
  CHECK(place(470) == 0b01);
  CHECK(place(320) == 0b10);  // best fit would take the first GPU
  CHECK(place(320) == 0b10);
  CHECK(place(470) == 0b01);
  CHECK(place(320) == 0b10);
  CHECK_FALSE(placer.decide(share(320)));
  CHECK(cluster.free_milli() == 60 + 40);
}

TEST_CASE("fragmentation places CPU-heavy requests where CPUs are left over") {
  Cluster cluster;
  REQUIRE(cluster.add(node("few", 2, "A", 8'000)));
  REQUIRE(cluster.add(node("many", 2, "A", 64'000)));
  Placer placer(cluster, {});
  for (int i = 0; i < 100; ++i) placer.observe(whole(1, i % 2 == 0 ? 4'000 : 8'000));
  const auto where = [&](const Request& request) {
    return cluster.spec(placer.decide(request)->parts[0].node).name;
  };
  CHECK(where(whole(1, 8'000)) == "many");
  // A request for CPUs only goes to the node whose GPUs do not starve.
  CHECK(where({.gpus = 0, .milli = 0, .cpu_milli = 6'000}) == "many");
}

TEST_CASE("fragmentation keeps rare models for requests that need them") {
  Cluster cluster;
  REQUIRE(cluster.add(node("rare", 2, "R")));
  for (int i = 0; i < 8; ++i) REQUIRE(cluster.add(node("n" + std::to_string(i), 2, "A")));
  Placer placer(cluster, {});
  Request picky = whole(1);
  picky.models = {"R"};
  for (int i = 0; i < 100; ++i) placer.observe(i % 10 == 0 ? picky : whole(1));
  for (int i = 0; i < 16; ++i) {
    const auto placement = placer.decide(whole(1));
    REQUIRE(placement);
    CHECK(cluster.spec(placement->parts[0].node).model == "A");
    REQUIRE(cluster.allocate(*placement));
  }
  CHECK(cluster.spec(placer.decide(picky)->parts[0].node).name == "rare");
  // The rare model is used when nothing else is free.
  CHECK(cluster.spec(placer.decide(whole(1))->parts[0].node).name == "rare");
  picky.models = {"unknown"};
  CHECK_FALSE(placer.decide(picky));
}

TEST_CASE("GPU memory limits shares as compute does") {
  Cluster cluster;
  REQUIRE(cluster.add(node("a", 2, "A", 64'000, 16 * kGib)));
  Placer placer(cluster, {});
  Request request = share(100);
  request.memory_bytes = 9 * kGib;
  for (const uint16_t mask : {0b01, 0b10}) {
    const auto placement = placer.decide(request);
    REQUIRE(placement);
    CHECK(placement->parts[0].gpu_mask == mask);
    REQUIRE(cluster.allocate(*placement));
  }
  CHECK_FALSE(placer.decide(request));
  request.memory_bytes = 7 * kGib;
  CHECK(placer.decide(request));
  CHECK_FALSE(placer.decide(whole(1)));
}
