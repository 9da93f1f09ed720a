// Tests that requests on the admin socket do not fill poold's memory.
#include "tests/support/catch.h"
#include "tests/support/peak_memory.h"
#include "tests/support/poold_process.h"
#include "tests/support/raw_grpc.h"

using namespace gpupool;
using namespace gpupool::testing;

TEST_CASE("requests without end on the admin socket take a bounded amount of poold's memory") {
  constexpr uint64_t kMib = 1 << 20;
  PooldProcess poold(FAKE_DEVICE_LIBRARY);
  const uint64_t before = peak_memory(poold.pid());
  {
    RawGrpc caller = RawGrpc::connect(poold.admin_socket());
    for (int call = 0; call < 4; ++call) caller.call("/gpupool.admin.Admin/Health", UINT32_MAX);
    const uint64_t accepted = caller.send(1000 * kMib);
    CAPTURE(accepted);
    CHECK(accepted < 200 * kMib);
  }
  CHECK(peak_memory(poold.pid()) - before < 200 * kMib);
  CHECK(eventually([&] {
    return run_to_end({program_path("pool-admin"), "--poold", "unix:" + poold.admin_socket(), "health"})
               .status == 0;
  }));
}
