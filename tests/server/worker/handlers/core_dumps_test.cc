// Tests that no client makes NVIDIA's driver write core dumps or make their pipes on the server.
#include "protocol/wire/commands.h"
#include "tests/server/worker/test_client.h"
#include "tests/support/catch.h"

using namespace gpupool;
using namespace gpupool::worker::test;
using cuda::Kind;
using cuda::make_handle;
using wire::Command;

TEST_CASE("contexts reach the driver without the flags for core dumps") {
  constexpr uint32_t kCoreDumps = 0x20 | 0x40, kOther = CU_CTX_SCHED_YIELD | CU_CTX_MAP_HOST;
  TestClient client;
  client.send(Command::retain_primary_context,
              bytes_of(wire::PrimaryContext{kContext, 0, kCoreDumps | kOther}), false, 0);
  CHECK(client.ask(Command::create_context,
                   bytes_of(wire::CreateContext{make_handle(Kind::context, 1, 9), 0, kCoreDumps | kOther})) ==
        CUDA_SUCCESS);
  CHECK(client.fake.locked([&] { return client.fake.context_flags; }) ==
        std::vector<unsigned>{kOther, kOther});
}
