// Reports test cases that cannot run on this machine. scripts/test.sh lists and counts the reported lines,
// even if the ctest entry passes.
#pragma once
#include <cstdio>
#include <string>

#include "tests/support/catch.h"

namespace gpupool::testing {

// Reports that a test case, or a part of it, is skipped. Use `return report_skip("...")` to leave a test
// case. ctest shows an entry as skipped if none of its test cases made an assertion (cmake/tests.cmake).
inline void report_skip(const std::string& reason) {
  std::printf("SKIPPED: %s: %s\n", Catch::getResultCapture().getCurrentTestName().c_str(), reason.c_str());
  std::fflush(stdout);
}

}  // namespace gpupool::testing
