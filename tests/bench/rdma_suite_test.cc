// The rdma suite itself: every figure is there, with perftest's beside it where that is installed. No speed is asserted.
#include <fstream>
#include <sstream>

#include "tests/support/catch.h"
#include "tests/support/poold_process.h"

using namespace gpupool::testing;

TEST_CASE("a quick run of the rdma suite has every figure") {
  TemporaryFolder folder;
  const std::string file = folder.path() / "figures.json";
  Process bench({program_path("gpupool-bench"), "--suite", "rdma", "--quick", "--json", file}, {});
  const int status = bench.wait(std::chrono::minutes(8));
  bench.await_end_of_output();
  INFO(bench.output());
  REQUIRE(status == 0);
  std::stringstream json;
  json << std::ifstream(file).rdbuf();
  const std::string text = json.str();
  const auto has = [&](const std::string& part) { return text.find(part) != std::string::npos; };
  CHECK(has("\"hardware\": \""));
  CHECK((bench.output().find("is not installed") != std::string::npos || !has("\"baseline_value\": 0, \"ratio\": 0, \"target\": \">=")));
  for (const std::string name : {"h2d_pinned_4194304", "d2h_pinned_4194304", "null_call", "launches_until_done", "registered_session"}) {
    INFO(name);
    CHECK(has("{\"name\": \"" + name + "\", \"transport\": \"rdma\", \"value\": "));
    CHECK_FALSE(has("{\"name\": \"" + name + "\", \"transport\": \"rdma\", \"value\": 0,"));
  }
  CHECK(has("\"registered_session\", \"transport\": \"rdma\""));
  CHECK(has("\"target\": \"<= 4\", \"reached\": true"));
}
