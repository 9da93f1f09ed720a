// Tests that each driver function is declared in the right table, that the built library defines it
// accordingly, and that docs/coverage.md is up to date.
#include <algorithm>
#include <fstream>
#include <iterator>

#include "tests/client/coverage/page.h"
#include "tests/support/catch.h"

using namespace gpupool::testing;

TEST_CASE("every function is declared in one table and defined in all its versions or in none") {
  const Coverage coverage = read_coverage(CLIENT_LIBRARY);
  size_t missing = 0;
  for (const auto& function : coverage.functions) {
    INFO(function.name);
    for (const std::string& mistake : function.mistakes) CHECK(mistake == "");
    CHECK(function.defined == (function.state != State::unsupported));
    if (function.defined) CHECK(function.missing.empty());
    missing += !function.defined;
  }
  CHECK(coverage.functions.size() > 440);
  CHECK(missing <= 40);
}

TEST_CASE("docs/coverage.md is up to date") {
  std::ifstream in(COVERAGE_PAGE);
  const std::string page((std::istreambuf_iterator<char>(in)), {});
  const bool same = page == coverage_page(read_coverage(CLIENT_LIBRARY));
  INFO("make docs/coverage.md anew: cmake --build --preset dev --target coverage");
  CHECK(same);
}
