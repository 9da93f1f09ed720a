// The programs of programs/ compute the same through poold as on the CPU.
#include "tests/e2e/pool.h"
#include "tests/support/catch.h"

using namespace gpupool::testing;

namespace {

// ctest runs each program as a separate entry with the variable PROGRAM (CMakeLists.txt).
std::string program_under_test() {
  const char* name = std::getenv("PROGRAM");
  REQUIRE(name != nullptr);
  return std::string(PROGRAMS_FOLDER) + "/" + name;
}

}  // namespace

TEST_CASE("program") {
  Pool pool(Environment{{"SOFTGPU_MEMORY", "1GiB"}});
  const std::vector<std::string> words{program_under_test()};
  const Finished pooled = run_patiently(words, pool.through());
  INFO(pooled.output);
  CHECK(pooled.status == 0);
  CHECK(pooled.output.find("PASSED") != std::string::npos);
}
