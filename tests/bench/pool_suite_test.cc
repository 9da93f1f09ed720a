// The pool suite itself: every figure is there. No speed is asserted: machines differ.
#include "tests/bench/quick_run.h"

using namespace gpupool::testing;

TEST_CASE("a quick run of the pool suite has every figure") {
  const QuickRun run = quick_run({"--suite", "pool"}, std::chrono::minutes(4));
  INFO(run.output);
  for (const std::string name : {"lease_grants", "lease_grant_p50", "lease_grant_p99", "lease_grant_alone_p50", "lease_grant_alone_p99"}) {
    INFO(name);
    CHECK(run.json.find("{\"name\": \"" + name + "\", \"transport\": \"grpc\", \"value\": ") != std::string::npos);
  }
}
