// Calls every exported function with arbitrary arguments. Neither the client library nor a worker may crash,
// and poold must keep serving.
#include <filesystem>

#include "tests/e2e/pool.h"
#include "tests/support/catch.h"

using namespace gpupool::testing;

namespace {

constexpr std::chrono::minutes kHundredsOfSessions{14};

void calls_everything(const std::vector<std::string>& scenario) {
  // Calls that write files (cuGraphDebugDotPrint, core dumps) get arbitrary bytes as a file name.
  const TemporaryFolder folder;
  std::filesystem::current_path(folder.path());
  Pool pool;
  std::vector<std::string> words{driver_app()};
  words.insert(words.end(), scenario.begin(), scenario.end());
  Process app(words, pool.through());
  const int status = app.wait(kHundredsOfSessions);
  INFO(app.output());
  CHECK(status == 0);
  CHECK(app.output().find(", 0 crashed") != std::string::npos);
  CHECK(lines_with(app.output(), "gpupool: lost the connection to server").empty());
  CHECK(pool.poold().log().find("killed by signal") == std::string::npos);
  CHECK(run_patiently({driver_app(), "short_life"}, pool.through()).status == 0);
}

}  // namespace

TEST_CASE("every symbol with nothing") {
  calls_everything({"any_call", "nothing"});
}
TEST_CASE("every symbol with empty blocks") {
  calls_everything({"any_call", "scratch"});
}
TEST_CASE("every served call with wild numbers and handles") {
  calls_everything({"any_row"});
}
TEST_CASE("every served call with destroyed objects") {
  calls_everything({"any_row", "stale"});
}
TEST_CASE("every served call with destroyed objects in what it reads") {
  calls_everything({"any_row", "stale_in_memory"});
}

TEST_CASE("functions that are newer than the library") {
  Pool pool;
  const Finished direct = run_patiently({driver_app(), "newer_functions"}, pool.directly());
  INFO(direct.output);
  CHECK(direct.status == 0);
  const Finished pooled = run_patiently({driver_app(), "newer_functions"}, pool.through());
  INFO(pooled.output);
  CHECK(pooled.status == 0);
  CHECK(lines_with(pooled.output, "gpupool: ").size() == 2);
  CHECK(
      lines_with(
          pooled.output,
          "cuGraphGetId is not supported: it was added in CUDA 13.1, and this library implements CUDA up to ")
          .size() == 1);
  CHECK(lines_with(pooled.output, "cuLogicalEndpointDestroy is not supported: it was added in CUDA 13.3, ")
            .size() == 1);
}
