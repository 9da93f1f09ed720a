// Tests of Placer::explain(): the texts for requests that cannot be placed.
#include "scheduler/placement/placer.h"
#include "tests/scheduler/placement/nodes.h"
#include "tests/support/catch.h"

using namespace gpupool::placement;

TEST_CASE("explanations name the obstacle and whether waiting can help") {
  Cluster cluster;
  REQUIRE(cluster.add(node("a", 2, "A", 8'000, 16 * kGib)));
  REQUIRE(cluster.add(node("b", 2, "B")));
  REQUIRE(cluster.add(node("c", 1, "B")));
  Placer placer(cluster, {});
  const auto explain = [&](const Request& request) {
    const Explanation explanation = placer.explain(request);
    CHECK(explanation.text.find('\n') == std::string::npos);
    return std::pair(explanation.ever, explanation.text);
  };
  CHECK(explain(whole(4)) == std::pair(false, std::string("4 whole GPUs: impossible: 3 nodes too few GPUs")));
  CHECK(explain(share(10, 70'000)) ==
        std::pair(false, std::string("1 GPU share of 0.01: impossible: 3 nodes too few processors free")));
  Request request = whole(1);
  request.models = {"X", "Y"};
  CHECK(explain(request) ==
        std::pair(false, std::string("1 whole GPU of model X or Y: impossible: 3 nodes another GPU model")));
  CHECK(explain(share(0)) == std::pair(false, std::string("impossible: a share must be 0.001 to 1 GPU")));
  CHECK(explain(whole(2)) == std::pair(true, std::string("it fits now, for example on node 'a'")));

  REQUIRE(cluster.allocate({{{.node = *cluster.find("a"), .gpu_mask = 0b11, .milli = 300}}, ""}));
  REQUIRE(cluster.allocate({{{.node = *cluster.find("b"), .gpu_mask = 0b01, .milli = 500}}, ""}));
  CHECK(explain(whole(2)) ==
        std::pair(
            true,
            std::string(
                "2 whole GPUs: currently impossible: 2 nodes too few whole GPUs free, 1 node too few GPUs")));
  REQUIRE(cluster.set_drained(*cluster.find("c"), true));
  REQUIRE(cluster.allocate({{{.node = *cluster.find("b"), .gpu_mask = 0b10, .milli = 500}}, ""}));
  CHECK(explain(share(800)) ==
        std::pair(true, std::string("1 GPU share of 0.8: currently impossible: 2 nodes too little GPU share "
                                    "free, 1 node drained; the largest free share is 0.7")));
  request = share(100);
  request.memory_bytes = 17 * kGib;
  CHECK(explain(request).second ==
        "1 GPU share of 0.1 with 17408 MiB: impossible: 3 nodes too little GPU memory free");

  request = whole(3);
  request.spread = Distance::any;
  CHECK(explain(request) == std::pair(true, std::string("3 whole GPUs: all nodes have 0 free at most")));
  request.gpus = 6;
  CHECK(explain(request) ==
        std::pair(false, std::string("6 whole GPUs: impossible: all nodes have 5 at most")));
}
