// The pool suite itself: every figure is there. No speed is asserted: machines differ.
#include "tests/bench/quick_run.h"

using namespace gpupool::testing;

TEST_CASE("a quick run of the pool suite has every figure") {
  const QuickRun run = quick_run({"--suite", "pool"}, std::chrono::minutes(4));
  INFO(run.output);
  for (const std::string name : {"lease_grants", "lease_grant_p50", "lease_grant_p99", "lease_grant_alone_p50", "lease_grant_alone_p99", "failover_leader_p50", "failover_leader_most",
                                 "failover_grant_p50", "failover_grant_most", "failover_leases", "failover_programs"}) {
    INFO(name);
    CHECK(run.json.find("{\"name\": \"" + name + "\", \"transport\": \"grpc\", \"value\": ") != std::string::npos);
  }
  // These are asserted: no machine is too slow for them.
  for (const std::string name : {"failover_leases_lost", "failover_double_grants", "failover_program_errors"}) {
    INFO(name);
    CHECK(run.json.find("{\"name\": \"" + name + "\", \"transport\": \"grpc\", \"value\": 0,") != std::string::npos);
  }
}
