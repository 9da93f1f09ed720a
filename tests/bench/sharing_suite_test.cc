// The sharing suite itself: every figure is there. No speed is asserted: machines differ.
#include "tests/bench/quick_run.h"

using namespace gpupool::testing;

TEST_CASE("a quick run of the sharing suite has every figure") {
  const QuickRun run = quick_run({"--suite", "sharing"}, std::chrono::minutes(8));
  const std::string& text = run.json;
  INFO(run.output);
  for (const std::string name : {"share_10_90_plain", "share_10_90_ex", "share_10_90_cooperative", "share_10_90_library", "share_10_20_30_40_fill", "share_10_90_graph",
                                 "hard_20_alone", "elastic_lent", "elastic_taken_back", "two_clients_throughput", "latency_critical_p99",
                                 "accounting_step", "accounting_empty_launch", "memory_over_quota_32_clients", "memory_left_unused_32_clients",
                                 "partition_50_alone", "partition_50_beside_another"}) {
    INFO(name);
    CHECK(text.find("{\"name\": \"" + name + "\", \"transport\": \"tcp\", \"value\": ") != std::string::npos);
  }
  CHECK(text.find("\"hard_20_alone\", \"transport\": \"tcp\", \"value\": 0,") == std::string::npos);
}
