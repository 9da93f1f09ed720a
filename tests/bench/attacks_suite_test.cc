// A quick run of the suite `attacks`: every figure is reported, and the limits of log and audit bytes hold.
// Times and memory are not checked: a run of half a second on a busy machine says little about them.
#include "tests/bench/quick_run.h"

using namespace gpupool::testing;

TEST_CASE(
    "a quick attacks suite reports every figure and refused connections write a bounded number of log "
    "lines") {
  const QuickRun run = quick_run({"--suite", "attacks"}, std::chrono::minutes(5));
  INFO(run.output);
  for (const std::string name : {"healthz_attacked_most", "healthz_attacked_p99", "launch_p99_attacked",
                                 "attempts", "resident_attacked", "resident_attempts"}) {
    INFO(name);
    CHECK(run.value(name) > 0);
  }
  CHECK(run.value("healthz_attacked_p99") <= run.value("healthz_attacked_most"));
  CHECK(run.value("attempts", "tcp", "baseline_value") > 0);
  run.value("resident_growth");  // any value is accepted
  for (const std::string name : {"log_bytes_refused", "audit_bytes_refused", "log_bytes_refused_in_numbers",
                                 "audit_bytes_refused_in_numbers"}) {
    INFO(name);
    CHECK(run.value(name) > 0);
    CHECK(run.value(name) <= 512);
  }
  for (const std::string attack : {"flood", "handshakes", "both"}) {
    INFO(attack);
    const std::string via = attack == "flood" ? "tcp" : "tls";
    CHECK(run.value("attempts_beside_" + attack, via) > 0);
    CHECK(run.value("slowest_beside_" + attack, via) > 0);
    CHECK(run.value("served_beside_" + attack, via) >= 0);
  }
}
