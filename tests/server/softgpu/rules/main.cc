// Prints docs/softgpu-rules.md.
#include <cstdio>

#include "tests/server/softgpu/rules/page.h"

int main() {
  return std::fputs(gpupool::testing::rules_page().c_str(), stdout) < 0;
}
