// A quick run of the suite `pool`: every figure is reported, and figures that depend on each other agree.
// Speeds are not checked, because machines differ.
#include "tests/bench/quick_run.h"

using namespace gpupool::testing;

TEST_CASE("a quick run of the pool suite has every figure") {
  const QuickRun run = quick_run({"--suite", "pool"}, std::chrono::minutes(4));
  INFO(run.output);
  for (const std::string name :
       {"lease_grants", "lease_grant_p50", "lease_grant_p99", "lease_grants_32_holders",
        "lease_grant_p50_32_holders", "lease_grant_p99_32_holders", "lease_grant_alone_p50",
        "lease_grant_alone_p99", "failover_leader_p50", "failover_leader_most", "failover_grant_p50",
        "failover_grant_most", "failover_leases", "failover_programs"}) {
    INFO(name);
    CHECK(run.value(name, "grpc") > 0);
  }
  for (const std::string name : {"lease_grant_", "lease_grant_alone_"})
    CHECK(run.value(name + "p50", "grpc") <= run.value(name + "p99", "grpc"));
  for (const std::string name : {"failover_leader_", "failover_grant_"})
    CHECK(run.value(name + "p50", "grpc") <= run.value(name + "most", "grpc"));
  // These must be 0 on any machine.
  for (const std::string name :
       {"failover_leases_lost", "failover_double_grants", "failover_program_errors"}) {
    INFO(name);
    CHECK(run.json.find("{\"name\": \"" + name + "\", \"transport\": \"grpc\", \"value\": 0,") !=
          std::string::npos);
  }
}
