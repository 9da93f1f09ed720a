// A quick run of the suite `sharing`: every figure is reported, and limits and quotas hold. Shares and speeds
// are not checked, because half a second on a busy machine says little about them; tests/e2e/sharing_test.cc
// checks shares.
#include "tests/bench/quick_run.h"

using namespace gpupool::testing;

namespace {

void check_between(const QuickRun& run, const std::string& name, double least, double most) {
  INFO(name);
  const double value = run.value(name);
  CHECK(value >= least);
  CHECK(value <= most);
}

}  // namespace

TEST_CASE("a quick run of the sharing suite has every figure, and its limits and quotas hold") {
  const QuickRun run = quick_run({"--suite", "sharing"}, std::chrono::minutes(8));
  INFO(run.output);
  for (const std::string way : {"plain", "ex", "cooperative", "library", "fill", "graph"}) {
    run.value("share_10_20_30_40_" + way);
  }
  check_between(run, "hard_20_alone", 0, 75);  // percent; 100 without a limit
  for (const char* const way : {"to_device", "to_host"}) {
    // Percent of the quota. If the machine pauses between reading the clock and copying, the window of half a
    // second seems shorter than it was.
    check_between(run, std::string("bandwidth_") + way + "_1_program", 1, 200);
    check_between(run, std::string("bandwidth_") + way + "_2_programs", 1, 200);
  }
  check_between(run, "memory_over_quota_32_clients", 0, 0);
  check_between(run, "memory_left_unused_32_clients", 0, 0);
  for (const char* const figure :
       {"elastic_lent", "two_clients_throughput", "two_clients_varying_shapes",
        "two_clients_varying_shapes_share", "partition_50_alone", "partition_50_beside_another",
        "accounting_step", "accounting_empty_launch"}) {
    INFO(figure);
    CHECK(run.value(figure) > 0);
  }
  run.value("elastic_taken_back");  // may be negative: less than the length of a kernel
  CHECK(run.value("latency_critical_p99") >= run.value("latency_critical_p50"));
  CHECK(run.value("latency_critical_p50") > 0);
  CHECK(run.value("best_effort_beside_it") > 0);
  // Values are printed as they are measured, because a whole run takes a quarter of an hour.
  const size_t first = run.output.find("gpupool-bench: share_10_20_30_40_plain0 "),
               last = run.output.find("gpupool-bench: part partitions");
  CHECK(first != std::string::npos);
  CHECK(last != std::string::npos);
  CHECK(first < last);
}
