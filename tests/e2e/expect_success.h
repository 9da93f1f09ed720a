// Checks how a program ends. Included by the tests of this folder. Not thread-safe; fails the test.
#pragma once
#include <string>

#include "tests/e2e/pool.h"
#include "tests/support/catch.h"

namespace gpupool::testing {

// Waits until the program ends, and checks that its status is 0 and that one line of its output contains
// `last_words`.
inline void expect_success(Process& app, const std::string& last_words) {
  const int status = app.wait(kLongPatience);
  INFO(app.output());
  CHECK(status == 0);
  CHECK(lines_with(app.output(), last_words).size() == 1);
}

}  // namespace gpupool::testing
