// Prints docs/coverage.md: cuda_coverage LIBCUDA.
#include <cstdio>
#include <exception>

#include "tests/client/coverage/page.h"

int main(int count, char** words) try {
  if (count != 2) return std::fprintf(stderr, "usage: cuda_coverage LIBCUDA\n"), 2;
  std::fputs(gpupool::testing::coverage_page(gpupool::testing::read_coverage(words[1])).c_str(), stdout);
  return 0;
} catch (const std::exception& error) {
  return std::fprintf(stderr, "cuda_coverage: %s\n", error.what()), 1;
}
