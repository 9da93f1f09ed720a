// Tests a softgpu that ignores address hints (rule ignored_hints).
#include <stdlib.h>

#include "tests/server/softgpu/runtime/fixture.h"

namespace {

[[maybe_unused]] const int ignored = setenv("SOFTGPU_RULES", "+ignored_hints", 1);  // before cuInit

}  // namespace

TEST_CASE_METHOD(ContextFixture, "cuMemAddressReserve ignores an address hint") {
  constexpr size_t kGranule = 2 << 20;
  CUdeviceptr first = 0, second = 0;
  REQUIRE_OK(cuMemAddressReserve(&first, kGranule, 0, 0, 0));
  const CUdeviceptr wish = first + 16 * kGranule;
  REQUIRE_OK(cuMemAddressReserve(&second, kGranule, 0, wish, 0));
  CHECK(second != wish);
}
