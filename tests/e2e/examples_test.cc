// Every example gives the same result on softgpu directly, through poold, with pool-run and with LD_PRELOAD.
#include <filesystem>

#include "tests/e2e/pool.h"
#include "tests/support/catch.h"
#include "tests/support/skip.h"

using namespace gpupool::testing;

namespace {

using Arguments = std::map<std::string, std::vector<std::string>>;

// Smaller than the defaults to keep parallel tests fast, and smaller still over rdma, which usually runs in
// the slow guest: just enough for bulk connections (vector_add) and for direct copies (pipeline).
Arguments arguments() {
  if (over_rdma()) {
    return {{"vector_add", {"--size", "300000"}},
            {"pipeline", {"--chunks", "4", "--size", "70000"}},
            {"driver_api", {"--size", "20000"}},
            {"paillier", {"--size", "1"}},
            {"matrix_multiply", {"--rows", "60", "--inner", "50", "--columns", "70"}},
            {"fractal", {"--width", "80", "--height", "60", "--iterations", "100"}}};
  }
  return {{"paillier", {"--size", "8"}},
          {"matrix_multiply", {"--rows", "200", "--inner", "150", "--columns", "170"}},
          {"fractal", {"--width", "400", "--height", "300", "--iterations", "300"}}};
}

std::vector<std::string> command(const std::string& name) {
  std::vector<std::string> words{std::string(EXAMPLES_FOLDER) + "/" + name};
  const Arguments all = arguments();
  const auto more = all.find(name.substr(0, name.find('-')));
  if (more != all.end()) words.insert(words.end(), more->second.begin(), more->second.end());
  return words;
}

void expect_same(const Finished& direct, const Finished& pooled) {
  INFO("directly: " << direct.output);
  INFO("through poold: " << pooled.output);
  CHECK(direct.status == 0);
  CHECK(pooled.status == 0);
  CHECK(direct.output.find("PASSED") != std::string::npos);
  CHECK(without_timings(pooled.output) == without_timings(direct.output));
}

// ctest runs each example as a separate entry with the variable EXAMPLE (CMakeLists.txt).
std::string example_under_test() {
  const char* name = std::getenv("EXAMPLE");
  REQUIRE(name != nullptr);
  return name;
}

}  // namespace

TEST_CASE("example") {
  TemporaryFolder folder;
  const std::string name = example_under_test();
  Pool pool(Environment{{"SOFTGPU_MEMORY", "1GiB"}});
  auto words = command(name);
  if (name.starts_with("fractal")) words.insert(words.end(), {"--output", folder.path() / "picture.ppm"});
  const Finished direct = run_patiently(words, pool.directly());
  expect_same(direct, run_patiently(words, pool.through()));
  if (over_rdma())
    return report_skip("the launcher: the library gets in the same way, and the guest is slow");
  // The following programs choose the transport themselves: shared memory, as in the entry over it.
  if (!over_shared_memory()) return;
  std::vector<std::string> with_launcher{program_path("pool-run"), "--server", pool.poold().url(), "--"};
  with_launcher.insert(with_launcher.end(), words.begin(), words.end());
  expect_same(direct, run_patiently(with_launcher, {}));
  expect_same(direct, run_patiently(words, {{"LD_PRELOAD", client_folder() + "/libcuda.so.1"},
                                            {"GPUPOOL", pool.poold().url()}}));
  CHECK(pool.poold().await_log("session_ended", 3));
}
