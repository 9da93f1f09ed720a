// Tests how long objects that cannot migrate prevent a session from migrating.
#include <span>
#include <string>
#include <string_view>

#include "protocol/images/fatbin.h"
#include "protocol/wire/commands.h"
#include "protocol/wire/images.h"
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

void wish_variable(const char*, unsigned long long) {}

struct MigratingClient : TestClient {
  explicit MigratingClient(uint64_t most_history_bytes = worker::kMostHistoryBytes,
                           bool places_variables = false)
      : TestClient(false, nullptr, 0, false, nullptr, false, {}, {}, [&](worker::SessionStart& start) {
          start.can_migrate = true;
          start.most_history_bytes = most_history_bytes;
          if (!places_variables) return;
          start.symbol = [all = start.symbol](const char* name) {
            return std::string_view(name) == "softgpu_wish_variable" ? reinterpret_cast<void*>(&wish_variable)
                                                                     : all(name);
          };
        }) {
    retain();
  }
  // Loads a module of PTX with a comment of this many bytes.
  CUresult load(uint64_t module, size_t bytes) {
    const std::string image = ".version 8.0\n.target sm_80\n.address_size 64\n.visible .global .u32 g;\n//" +
                              std::string(bytes, 'x');
    cuda::Bytes bundle;
    REQUIRE(cuda::bundle({std::as_bytes(std::span(image.c_str(), image.size() + 1)), {}}, bundle) ==
            CUDA_SUCCESS);
    constexpr uint64_t kUpload = make_handle(Kind::upload, 1, 700);
    wire::Buffer part = bytes_of(wire::UploadPart{kUpload, bundle.view().size()});
    part.insert(part.end(), bundle.view().begin(), bundle.view().end());
    send(Command::upload_part, part);
    return ask(Command::load_module, bytes_of(wire::LoadImage{module, kUpload}));
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

TEST_CASE("the address of a variable prevents a migration where the driver places variables") {
  constexpr uint64_t kModule = make_handle(Kind::module, 1, 900);
  for (const bool places : {true, false}) {
    INFO("softgpu places variables where the worker wishes: " << places);
    MigratingClient client(worker::kMostHistoryBytes, places);
    const auto has_address = [&] {
      return client.refusal().find("has the address of a variable") != std::string::npos;
    };
    REQUIRE(client.load(kModule, 10) == CUDA_SUCCESS);
    CHECK_FALSE(has_address());
    wire::Buffer body = bytes_of(wire::GetGlobal{kModule});
    wire::Writer(body).put_text("g");
    REQUIRE(client.ask(Command::get_global, body) == CUDA_SUCCESS);
    CHECK(has_address() == !places);
    REQUIRE(client.ask("cuModuleUnload", bytes_of(kModule)) == CUDA_SUCCESS);
    CHECK_FALSE(has_address());
  }
}

// A client that can migrate could otherwise have its worker keep any number of images of up to 1 GiB.
TEST_CASE("images beyond a limit are not kept, and prevent a migration for good") {
  constexpr uint64_t kLimit = 1 << 20;
  MigratingClient client(kLimit);
  const auto module = [](uint32_t number) { return make_handle(Kind::module, 1, 800 + number); };
  const auto is_full = [&] {
    return client.refusal().find("too many bytes of loaded images") != std::string::npos;
  };
  for (uint32_t number = 0; number < 8; ++number) {  // unloaded images do not count
    REQUIRE(client.load(module(number), kLimit / 2) == CUDA_SUCCESS);
    REQUIRE(client.ask("cuModuleUnload", bytes_of(module(number))) == CUDA_SUCCESS);
  }
  REQUIRE(client.load(module(10), kLimit / 2) == CUDA_SUCCESS);
  CHECK_FALSE(is_full());
  REQUIRE(client.load(module(11), kLimit / 2) == CUDA_SUCCESS);
  CHECK(is_full());
  for (const uint32_t number : {10u, 11u})
    REQUIRE(client.ask("cuModuleUnload", bytes_of(module(number))) == CUDA_SUCCESS);
  CHECK(is_full());
}
