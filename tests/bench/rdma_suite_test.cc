// A quick run of the suite `rdma`: every figure is reported, with perftest's baseline if perftest is
// installed. Speeds are not checked.
#include "tests/bench/quick_run.h"

using namespace gpupool::testing;

TEST_CASE("a quick run of the rdma suite has every figure") {
  const QuickRun run = quick_run({"--suite", "rdma"}, std::chrono::minutes(8));
  const std::string& text = run.json;
  INFO(run.output);
  const auto has = [&](const std::string& part) { return text.find(part) != std::string::npos; };
  CHECK(has("\"hardware\": \""));
  CHECK((run.output.find("is not installed") != std::string::npos ||
         !has("\"baseline_value\": 0, \"ratio\": 0, \"target\": \">=")));
  for (const std::string name : {"h2d_pinned_4194304", "d2h_pinned_4194304", "null_call",
                                 "launches_until_done", "registered_session"}) {
    INFO(name);
    CHECK(run.value(name, "rdma") > 0);
  }
  CHECK(run.value("null_call", "rdma") > run.value("queued_launch", "rdma"));
  CHECK(has("\"target\": \"<= 4\", \"reached\": true"));
}
