// How a test says that it cannot run on this machine. scripts/test.sh lists and counts these lines, also those of entries that pass.
#pragma once
#include <cstdio>
#include <string>

#include "tests/support/catch.h"

namespace gpupool::testing {

// Reports that a test case, or a part of it, is not run here, and why. `return report_skip("...")` leaves a test case; ctest shows an
// entry whose test cases made no assertion at all as skipped (cmake/tests.cmake).
inline void report_skip(const std::string& reason) {
  std::printf("SKIPPED: %s: %s\n", Catch::getResultCapture().getCurrentTestName().c_str(), reason.c_str());
  std::fflush(stdout);
}

}  // namespace gpupool::testing
