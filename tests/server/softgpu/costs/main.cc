// Prints docs/softgpu-costs.md.
#include <cstdio>

#include "tests/server/softgpu/costs/page.h"

int main() {
  return std::fputs(gpupool::testing::costs_page().c_str(), stdout) < 0;
}
