// Tests of the inventory: allocation, release, draining, removal, the log of changes.
#include "scheduler/placement/cluster.h"

#include "tests/scheduler/placement/nodes.h"
#include "tests/support/catch.h"

using namespace gpupool::placement;

TEST_CASE("a placement allocates and releases exactly its parts") {
  Cluster cluster;
  const NodeId a = *cluster.add(node("a", 2, "A", 64'000, 16 * kGib)), b = *cluster.add(node("b", 4));
  CHECK(cluster.total_milli() == 6000);
  const Placement placement{{{.node = a,
                              .gpu_mask = 0b10,
                              .milli = 470,
                              .memory_bytes = 5 * kGib,
                              .cpu_milli = 12'000,
                              .host_memory = 7},
                             {.node = b, .gpu_mask = 0b0101, .milli = 1000}},
                            ""};
  REQUIRE(cluster.allocate(placement));
  CHECK(cluster.free_milli() == 6000 - 470 - 2000);
  CHECK(cluster.state(a.slot).milli[0] == 1000);
  CHECK(cluster.state(a.slot).milli[1] == 530);
  CHECK(cluster.state(a.slot).memory_bytes[1] == 11 * kGib);
  CHECK(cluster.state(a.slot).cpu_milli == 52'000);
  CHECK(cluster.state(a.slot).host_memory == static_cast<int64_t>(256 * kGib) - 7);
  CHECK(cluster.state(b.slot).milli[0] == 0);
  CHECK(cluster.state(b.slot).milli[1] == 1000);
  REQUIRE(cluster.release(placement));
  CHECK(cluster.free_milli() == 6000);
  CHECK(cluster.state(a.slot) == cluster.empty_state(a.slot));
  CHECK(cluster.state(b.slot) == cluster.empty_state(b.slot));
}

TEST_CASE("a placement that does not fit changes nothing") {
  Cluster cluster;
  const NodeId a = *cluster.add(node("a", 1, "A", 8'000, 16 * kGib));
  const NodeState empty = cluster.state(a.slot);
  const auto refused = [&](Part second) {
    const Placement placement{
        {{.node = a, .gpu_mask = 1, .milli = 500, .memory_bytes = 8 * kGib, .cpu_milli = 4'000}, second},
        "g"};
    const auto done = cluster.allocate(placement);
    CHECK(cluster.state(a.slot) == empty);
    CHECK(cluster.free_milli() == 1000);
    CHECK(cluster.slots_of("g") == nullptr);
    return done ? "" : done.error().message;
  };
  CHECK(refused({.node = a, .gpu_mask = 1, .milli = 501}) == "GPU 0 of node 'a' has too little free");
  CHECK(refused({.node = a, .gpu_mask = 1, .milli = 1, .memory_bytes = 8 * kGib + 1}) ==
        "GPU 0 of node 'a' has too little free");
  CHECK(refused({.node = a, .cpu_milli = 4'001}) == "node 'a' has too few processors free");
  CHECK(refused({.node = a, .host_memory = static_cast<int64_t>(256 * kGib) + 1}) ==
        "node 'a' has too little memory free");
  CHECK(refused({.node = a, .gpu_mask = 2, .milli = 1}) == "node 'a': invalid placement part");
  CHECK(refused({.node = a, .gpu_mask = 1, .milli = 0}) == "node 'a': invalid placement part");
  CHECK(refused({.node = a, .cpu_milli = -1}) == "node 'a': invalid placement part");
  CHECK(refused({.node = {a.slot, a.generation + 1}, .gpu_mask = 1, .milli = 1}) ==
        "a node of the placement was removed");
  CHECK(refused({.node = {7, 0}, .gpu_mask = 1, .milli = 1}) == "a node of the placement was removed");
}

TEST_CASE("releasing a placement twice fails") {
  Cluster cluster;
  const NodeId a = *cluster.add(node("a", 2));
  const Placement first{{{.node = a, .gpu_mask = 1, .milli = 600}}, ""},
      second{{{.node = a, .gpu_mask = 2, .milli = 600}}, ""};
  REQUIRE(cluster.allocate(first));
  REQUIRE(cluster.allocate(second));
  REQUIRE(cluster.release(first));
  CHECK_FALSE(cluster.release(first));
  CHECK(cluster.free_milli() == 1400);
  // The valid part is not released either.
  CHECK_FALSE(cluster.release({{second.parts[0], first.parts[0]}, ""}));
  CHECK(cluster.free_milli() == 1400);
  REQUIRE(cluster.release(second));
  CHECK(cluster.free_milli() == 2000);
}

TEST_CASE("a drained node keeps its placements and gets no new ones") {
  Cluster cluster;
  const NodeId a = *cluster.add(node("a", 1));
  const Placement half{{{.node = a, .gpu_mask = 1, .milli = 500}}, ""};
  REQUIRE(cluster.allocate(half));
  REQUIRE(cluster.set_drained(a, true));
  CHECK_FALSE(cluster.allocate(half));
  CHECK_FALSE(cluster.state(a.slot).fits(cluster.shape_of(share(1))));
  REQUIRE(cluster.release(half));
  CHECK(cluster.free_milli() == 1000);
  REQUIRE(cluster.set_drained(a, false));
  CHECK(cluster.allocate(half));
}

TEST_CASE("placements of a removed node can be released after its slot is reused") {
  Cluster cluster;
  const NodeId a = *cluster.add(node("a", 1)), b = *cluster.add(node("b", 2));
  const Placement both{{{.node = a, .gpu_mask = 1, .milli = 500}, {.node = b, .gpu_mask = 1, .milli = 500}},
                       "g"};
  REQUIRE(cluster.allocate(both));
  REQUIRE(cluster.remove(a));
  CHECK(cluster.total_milli() == 2000);
  CHECK(cluster.free_milli() == 1500);
  CHECK_FALSE(cluster.find("a"));
  CHECK_FALSE(cluster.remove(a));
  const NodeId c = *cluster.add(node("c", 4));
  CHECK(c.slot == a.slot);
  CHECK(c != a);
  REQUIRE(cluster.release(both));
  CHECK(cluster.free_milli() == 6000);
  CHECK(cluster.slots_of("g") == nullptr);
}

TEST_CASE("bad nodes are refused") {
  Cluster cluster;
  REQUIRE(cluster.add(node("a", 1)));
  CHECK(cluster.add(node("a", 1)).error().message == "duplicate node 'a'");
  CHECK(cluster.add(node("b", 17)).error().message == "node 'b' has 17 GPUs; must be from 0 to 16");
  CHECK_FALSE(cluster.add(node("c", 1, "A", -1)));
  for (int i = 0; i < kMaxModels - 1; ++i)
    REQUIRE(cluster.add(node("n" + std::to_string(i), 1, "M" + std::to_string(i))));
  CHECK_FALSE(cluster.add(node("d", 1, "one too many")));
  CHECK(cluster.size() == kMaxModels);
}

TEST_CASE("the change history is bounded") {
  Cluster cluster;
  const NodeId a = *cluster.add(node("a", 1)), b = *cluster.add(node("b", 1));
  const uint64_t before = cluster.change();
  REQUIRE(cluster.set_drained(b, true));
  REQUIRE(cluster.set_drained(a, true));
  REQUIRE(cluster.set_drained(a, true));  // no change
  const auto changes = cluster.changes_since(before);
  REQUIRE(changes);
  CHECK(std::vector<uint32_t>(changes->begin(), changes->end()) == std::vector<uint32_t>{b.slot, a.slot});
  for (int i = 0; i < 3000; ++i) REQUIRE(cluster.set_drained(a, i % 2 == 0 ? false : true));
  CHECK_FALSE(cluster.changes_since(before));
  CHECK(cluster.changes_since(cluster.change())->empty());
}
