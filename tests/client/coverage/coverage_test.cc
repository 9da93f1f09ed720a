// Nothing of the driver API is missing but what has a reason, the reasons are few, and docs/coverage.md says what the built library does.
#include <algorithm>
#include <fstream>
#include <iterator>

#include "tests/client/coverage/page.h"
#include "tests/support/catch.h"

using namespace gpupool::testing;

TEST_CASE("every function works in all its versions or has a reason not to, and at most forty have one") {
  const Coverage coverage = read_coverage(CLIENT_LIBRARY);
  size_t reasons = 0;
  for (const auto& function : coverage.functions) {
    INFO(function.name);
    CHECK(function.defined != !function.reason.empty());
    if (function.defined) CHECK(function.missing.empty());
    reasons += !function.reason.empty();
  }
  CHECK(coverage.functions.size() > 440);
  CHECK(reasons <= 40);
}

TEST_CASE("the page of coverage is the one that the table makes") {
  std::ifstream in(COVERAGE_PAGE);
  const std::string page((std::istreambuf_iterator<char>(in)), {});
  const bool same = page == coverage_page(read_coverage(CLIENT_LIBRARY));
  INFO("make docs/coverage.md anew: cmake --build --preset ci --target coverage");
  CHECK(same);
}
