// Tests how long objects that cannot migrate prevent a session from migrating.
#include "protocol/wire/commands.h"
#include "protocol/wire/migration.h"
#include "tests/server/worker/test_client.h"
#include "tests/support/catch.h"

using namespace gpupool;
using namespace gpupool::worker::test;
using cuda::Kind;
using cuda::make_handle;
using wire::Command;

namespace {

constexpr uint64_t kArray = make_handle(Kind::array, 1, 600),
                   kLevels = make_handle(Kind::mipmapped_array, 1, 601),
                   kLevel = make_handle(Kind::array, 1, 602);

struct MigratingClient : TestClient {
  MigratingClient()
      : TestClient(false, nullptr, 0, false, nullptr, false, {}, {},
                   [](worker::SessionStart& start) { start.can_migrate = true; }) {
    retain();
  }
  // Tries to migrate to nowhere, and returns why that failed.
  std::string refusal() {
    wire::PeerTarget target{};
    target.copy = 1;
    const Message answer =
        reply(send(Command::begin_migration, bytes_of(wire::BeginMigration{target}), true));
    CHECK(answer.header.result == CUDA_ERROR_NOT_SUPPORTED);
    return answer.text();
  }
  bool has_arrays() { return refusal().find("has arrays, textures or surfaces") != std::string::npos; }
};

}  // namespace

TEST_CASE("arrays prevent a migration until they are destroyed") {
  MigratingClient client;
  const CUDA_ARRAY3D_DESCRIPTOR shape{16, 16, 0, CU_AD_FORMAT_FLOAT, 1, 0};
  CHECK_FALSE(client.has_arrays());
  REQUIRE(client.ask("cuArray3DCreate_v2", bytes_of(kArray, uint8_t{1}, shape)) == CUDA_SUCCESS);
  REQUIRE(client.ask("cuMipmappedArrayCreate", bytes_of(kLevels, uint8_t{1}, shape, uint32_t{3})) ==
          CUDA_SUCCESS);
  REQUIRE(client.ask(Command::array_part, bytes_of(wire::ArrayPart{kLevel, kLevels, 1, 0})) == CUDA_SUCCESS);
  CHECK(client.has_arrays());
  REQUIRE(client.ask(Command::destroy_array, bytes_of(wire::DestroyArray{kArray})) == CUDA_SUCCESS);
  CHECK(client.has_arrays());  // the mipmapped array and its level
  REQUIRE(client.ask(Command::destroy_array, bytes_of(wire::DestroyArray{kLevels})) == CUDA_SUCCESS);
  CHECK_FALSE(client.has_arrays());
}
