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

constexpr uint64_t kReference = make_handle(Kind::texture_reference, 1, 600);

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
  bool has_references() { return refusal().find("has texture or surface references") != std::string::npos; }
};

}  // namespace

TEST_CASE("texture references prevent a migration until they are destroyed") {
  MigratingClient client;
  CHECK_FALSE(client.has_references());
  REQUIRE(client.ask("cuTexRefCreate", bytes_of(kReference)) == CUDA_SUCCESS);
  CHECK(client.has_references());
  REQUIRE(client.ask("cuTexRefDestroy", bytes_of(kReference)) == CUDA_SUCCESS);
  CHECK_FALSE(client.has_references());
}
