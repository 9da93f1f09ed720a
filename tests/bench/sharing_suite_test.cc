// The sharing suite itself: every figure is there. No speed is asserted: machines differ.
#include <fstream>
#include <sstream>

#include "tests/support/catch.h"
#include "tests/support/poold_process.h"

using namespace gpupool::testing;

TEST_CASE("a quick run of the sharing suite has every figure") {
  TemporaryFolder folder;
  const std::string file = folder.path() / "figures.json";
  Process bench({program_path("gpupool-bench"), "--suite", "sharing", "--quick", "--json", file}, {});
  const int status = bench.wait(std::chrono::minutes(8));
  bench.await_end_of_output();
  INFO(bench.output());
  REQUIRE(status == 0);
  std::stringstream json;
  json << std::ifstream(file).rdbuf();
  const std::string text = json.str();
  for (const std::string name : {"share_10_90_plain", "share_10_90_ex", "share_10_90_cooperative", "share_10_90_library", "share_10_20_30_40_fill",
                                 "hard_20_alone", "elastic_lent", "elastic_taken_back", "two_clients_throughput", "latency_critical_p99",
                                 "accounting_step", "accounting_empty_launch", "memory_over_quota_32_clients", "memory_left_unused_32_clients"}) {
    INFO(name);
    CHECK(text.find("{\"name\": \"" + name + "\", \"transport\": \"tcp\", \"value\": ") != std::string::npos);
  }
  CHECK(text.find("\"hard_20_alone\", \"transport\": \"tcp\", \"value\": 0,") == std::string::npos);
}
