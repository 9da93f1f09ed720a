// Tests of Placer: several nodes, groups, impossible requests.
#include "scheduler/placement/placer.h"

#include "tests/scheduler/placement/nodes.h"
#include "tests/support/catch.h"

using namespace gpupool::placement;

namespace {

std::string names(const Cluster& cluster, const std::optional<Placement>& placement) {
  if (!placement) return "nowhere";
  std::string text;
  for (const Part& part : placement->parts) {
    text += (text.empty() ? "" : " ") + cluster.spec(part.node).name + ":" +
            std::to_string(std::popcount(part.gpu_mask));
  }
  return text;
}

Request spread_over(int gpus, Distance distance) {
  Request request = whole(gpus);
  request.spread = distance;
  return request;
}

}  // namespace

TEST_CASE("several GPUs come from one node or else from the nearest nodes") {
  Cluster cluster;
  REQUIRE(cluster.add(node_at("a", "z1", "r1", 2)));
  REQUIRE(cluster.add(node_at("b", "z1", "r2", 2)));
  REQUIRE(cluster.add(node_at("c", "z1", "r2", 2)));
  REQUIRE(cluster.add(node_at("d", "z2", "r1", 4)));
  Placer placer(cluster, {});
  const auto decide = [&](int gpus, Distance distance) {
    return names(cluster, placer.decide(spread_over(gpus, distance)));
  };
  CHECK(decide(2, Distance::any) == "a:2");
  CHECK(decide(4, Distance::any) == "d:4");
  CHECK(decide(5, Distance::host) == "nowhere");
  CHECK(decide(5, Distance::rack) == "nowhere");
  CHECK(decide(5, Distance::zone) == "b:2 c:2 a:1");  // the rack with the most free GPUs first
  CHECK(decide(7, Distance::zone) == "nowhere");
  CHECK(decide(10, Distance::any) == "b:2 c:2 a:2 d:4");
  CHECK(decide(11, Distance::any) == "nowhere");
  REQUIRE(cluster.set_drained(*cluster.find("d"), true));
  CHECK(decide(4, Distance::any) == "b:2 c:2");  // one rack is preferred to one zone
  CHECK(decide(3, Distance::rack) == "b:2 c:1");
}

TEST_CASE("processors of GPUs of several nodes are shared out evenly") {
  Cluster cluster;
  REQUIRE(cluster.add(node("a", 4, "A", 5'000)));
  REQUIRE(cluster.add(node("b", 4, "A", 64'000)));
  Placer placer(cluster, {});
  Request request = spread_over(6, Distance::any);
  request.cpu_milli = 15'001;  // 2501 per GPU, rounded up: node a suffices for one GPU
  const auto placement = placer.decide(request);
  CHECK(names(cluster, placement) == "nowhere");
  request.cpu_milli = 15'000;
  const auto fits = placer.decide(request);
  CHECK(names(cluster, fits) == "a:2 b:4");
  CHECK(fits->parts[0].cpu_milli == 5'000);
  CHECK(fits->parts[1].cpu_milli == 10'000);
  CHECK(cluster.allocate(*fits));
}

TEST_CASE("groups stay together or apart") {
  Cluster cluster;
  REQUIRE(cluster.add(node_at("a", "z1", "r1", 2)));
  REQUIRE(cluster.add(node_at("b", "z1", "r1", 2)));
  REQUIRE(cluster.add(node_at("c", "z1", "r2", 2)));
  REQUIRE(cluster.add(node_at("d", "z2", "r1", 2)));
  Placer placer(cluster, {});
  Request member = share(100);
  member.group = "web";
  const auto first = placer.decide(member);
  CHECK(names(cluster, first) == "a:1");
  REQUIRE(cluster.allocate(*first));
  const auto with = [&](bool apart, Distance within) {
    Request request = share(100);
    request.rules = {{.group = "web", .apart = apart, .within = within}};
    return names(cluster, placer.decide(request));
  };
  CHECK(with(false, Distance::host) == "a:1");
  CHECK(with(true, Distance::host) == "b:1");
  CHECK(with(true, Distance::rack) == "c:1");
  CHECK(with(true, Distance::zone) == "d:1");
  CHECK(with(true, Distance::any) == "nowhere");
  REQUIRE(cluster.set_drained(*cluster.find("a"), true));
  CHECK(with(false, Distance::host) == "nowhere");
  CHECK(with(false, Distance::rack) == "b:1");
  REQUIRE(cluster.release(*first));
  CHECK(with(false, Distance::host) == "b:1");  // a rule for a group without placements has no effect
  Request several = spread_over(4, Distance::any);
  several.rules = {{.group = "web", .apart = true, .within = Distance::host}};
  CHECK(names(cluster, placer.decide(several)) == "b:2 c:2");
}

TEST_CASE("impossible requests are distinguished from waiting ones") {
  const auto why = [](Request request) {
    const auto checked = Placer::check(request);
    return checked ? "" : checked.error().message;
  };
  CHECK(why(share(1)).empty());
  CHECK(why(share(0)) == "a share must be 0.001 to 1 GPU");
  CHECK(why(share(1001)) == "a share must be 0.001 to 1 GPU");
  CHECK(why(whole(-1)) == "the number of GPUs must be 0 to 65535");
  CHECK(why(whole(17)) == "more GPUs than a node can have; allow several nodes");
  CHECK(why(spread_over(17, Distance::rack)).empty());
  CHECK(why({.gpus = 0, .milli = 0}) == "the request asks for nothing");
  CHECK(why({.gpus = 0, .milli = 0, .memory_bytes = 1}) == "GPU memory requested without a GPU");
  CHECK(why({.cpu_milli = -1}) == "processors and host memory must not be negative");
}
