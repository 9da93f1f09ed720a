// Tests that everything that takes device memory is first charged to the tenant, and uncharged when freed.
#include "protocol/wire/commands.h"
#include "protocol/wire/copies.h"
#include "tests/server/worker/limited_session.h"

using namespace gpupool;
using namespace gpupool::worker;
using namespace gpupool::worker::test;
using cuda::Kind;
using cuda::make_handle;
using wire::Command;

namespace {

constexpr uint64_t kPage = FakeDriver::kGranularity;
constexpr uint64_t kMemory = make_handle(Kind::memory, 1, 300);
constexpr uint64_t kModule = make_handle(Kind::module, 1, 301);
constexpr uint64_t kSecond = make_handle(Kind::context, 1, 2);

}  // namespace

TEST_CASE("grants mappings up to the last granule of the quota") {
  Limited tenant(4 * kPage + kPage - 1);
  CHECK(tenant.map(0, 3) == CUDA_SUCCESS);
  CHECK(tenant.map(10, 2) == CUDA_ERROR_OUT_OF_MEMORY);
  CHECK(tenant.map(10, 1) == CUDA_SUCCESS);
  CHECK(tenant.map(20, 1) == CUDA_ERROR_OUT_OF_MEMORY);
  CHECK(tenant.used() == 4 * kPage);
  CHECK(tenant.client->fake.used() == 4 * kPage);
  CHECK(tenant.refused() == 2);
  // A refused call has no other effect: existing memory works, and freed memory can be allocated.
  CHECK(tenant.client->ask("cuMemsetD8Async", bytes_of(tenant.client->address(0), uint8_t{1}, uint64_t{16},
                                                       uint64_t{0})) == CUDA_SUCCESS);
  tenant.free(0, 3);
  CHECK(tenant.map(30, 3) == CUDA_SUCCESS);
  CHECK(tenant.used() == 4 * kPage);
  CHECK((*tenant.page)->gpus[0].memory_peak == 4 * kPage);
}

TEST_CASE("an allocation waits for pending frees") {
  Limited tenant(2 * kPage);
  CHECK(tenant.map(0, 2) == CUDA_SUCCESS);
  tenant.client->create_stream(0);
  tenant.client->fake.hold(0);
  tenant.client->call("cuMemsetD8Async",
                      bytes_of(tenant.client->address(0), uint8_t{1}, uint64_t{16}, stream_handle(0)));
  tenant.free(0, 2);
  const auto asked = tenant.client->send(
      Command::map_memory, bytes_of(wire::MapMemory{tenant.client->address(10 * kPage), 2 * kPage, 0, 0}),
      true);
  CHECK(tenant.client->silent());
  CHECK(tenant.used() == 2 * kPage);
  tenant.client->fake.let_go(0);
  CHECK(tenant.client->result(asked) == CUDA_SUCCESS);
  CHECK(tenant.refused() == 0);
}

TEST_CASE("does not charge a mapping that the device refuses") {
  Limited tenant(FakeDriver::kMemory * 2);
  CHECK(tenant.map(0, FakeDriver::kMemory / kPage + 1) == CUDA_ERROR_OUT_OF_MEMORY);
  CHECK(tenant.create(kMemory, FakeDriver::kMemory / kPage + 1) == CUDA_ERROR_OUT_OF_MEMORY);
  CHECK(tenant.used() == 0);
  CHECK((*tenant.page)->gpus[0].memory_peak == 0);
}

TEST_CASE("the reply to a mapping reports its own result despite an earlier error") {
  Limited tenant(kPage);
  tenant.client->call("cuMemsetD8Async", bytes_of(uint64_t{1}, uint8_t{1}, uint64_t{16}, uint64_t{0}));
  const Message reply = tenant.client->reply(tenant.client->send(
      Command::map_memory, bytes_of(wire::MapMemory{tenant.client->address(0), kPage, 0, 0}), true));
  CHECK(reply.header.result == CUDA_ERROR_INVALID_VALUE);
  CHECK(reply.as<uint64_t>() == tenant.client->address(0));
  CHECK((reply.header.flags & wire::kMemoryLimited) != 0);
  REQUIRE(tenant.accounts.set("t", {}));
  const Message later = tenant.client->reply(tenant.client->send(
      Command::map_memory, bytes_of(wire::MapMemory{tenant.client->address(0), kPage, 0, 0}), true));
  CHECK(later.header.result == CUDA_ERROR_INVALID_VALUE);  // is mapped
  CHECK(later.body.empty());
  CHECK((later.header.flags & wire::kMemoryLimited) == 0);
}

TEST_CASE("charges memory of cuMemCreate until it is released and unmapped") {
  Limited tenant(3 * kPage);
  CHECK(tenant.create(kMemory, 4) == CUDA_ERROR_OUT_OF_MEMORY);
  CHECK(tenant.create(kMemory, 3) == CUDA_SUCCESS);
  CHECK(tenant.map(0, 1) == CUDA_ERROR_OUT_OF_MEMORY);
  const uint64_t at = tenant.client->address(20 * kPage);
  CHECK(tenant.client->ask("cuMemMap", bytes_of(at, uint64_t{3 * kPage}, uint64_t{0}, kMemory,
                                                uint64_t{0})) == CUDA_SUCCESS);
  CHECK(tenant.client->ask("cuMemRelease", bytes_of(kMemory)) == CUDA_SUCCESS);
  CHECK(tenant.used() == 3 * kPage);
  CHECK(tenant.client->ask("cuMemUnmap", bytes_of(at, uint64_t{3 * kPage})) == CUDA_SUCCESS);
  CHECK(tenant.used() == 0);
  CHECK(tenant.create(kMemory, 2) == CUDA_SUCCESS);
  // Reuse of a handle's slot destroys the previous object.
  CHECK(tenant.create(make_handle(Kind::memory, 2, 300), 1) == CUDA_SUCCESS);
  CHECK(tenant.used() == kPage);
  CHECK(tenant.client->fake.used() == kPage);
}

TEST_CASE("charges variables of modules and rejects a handle that is in use") {
  Limited tenant(10'000);
  CHECK(tenant.load(kModule, ".global .b8 big[10001];") == CUDA_ERROR_OUT_OF_MEMORY);
  CHECK(tenant.client->fake.module_count() == 0);
  CHECK(tenant.load(kModule, ".global .b8 broken[9000];") == CUDA_ERROR_INVALID_PTX);
  CHECK(tenant.used() == 0);
  CHECK(tenant.load(kModule, ".global .b8 big[9000];") == CUDA_SUCCESS);
  CHECK(tenant.used() == 9216);
  CHECK(tenant.load(kModule, ".global .b8 more[1];") == CUDA_ERROR_INVALID_VALUE);
  CHECK(tenant.used() == 9216);
  const uint64_t other = make_handle(Kind::module, 1, 303);
  CHECK(tenant.load(other, ".global .b8 more[1000];") == CUDA_ERROR_OUT_OF_MEMORY);
  CHECK(tenant.client->ask("cuModuleUnload", bytes_of(kModule)) == CUDA_SUCCESS);
  CHECK(tenant.used() == 0);
  CHECK(tenant.load(other, ".global .b8 more[1000];") == CUDA_SUCCESS);
  CHECK(tenant.used() == 1024);
}

TEST_CASE("charges the increase of a context's limits") {
  Limited tenant(1'000'000);
  CHECK(tenant.set_limit(CU_LIMIT_MALLOC_HEAP_SIZE, (8u << 20) + 900'000) == CUDA_SUCCESS);
  CHECK(tenant.used() == 900'000);
  CHECK(tenant.set_limit(CU_LIMIT_PRINTF_FIFO_SIZE, (1u << 20) + 100'001) == CUDA_ERROR_OUT_OF_MEMORY);
  CHECK(tenant.client->fake.limits[CU_LIMIT_PRINTF_FIFO_SIZE] == 1u << 20);
  CHECK(tenant.set_limit(CU_LIMIT_MALLOC_HEAP_SIZE, 77) == CUDA_ERROR_INVALID_VALUE);
  CHECK(tenant.used() == 900'000);
  CHECK(tenant.set_limit(CU_LIMIT_MALLOC_HEAP_SIZE, 4096) == CUDA_SUCCESS);
  CHECK(tenant.used() == 0);
  CHECK(tenant.set_limit(CU_LIMIT_PRINTF_FIFO_SIZE, (1u << 20) + 100'001) == CUDA_SUCCESS);
  CHECK(tenant.used() == 100'001);
  tenant.client->send(Command::release_primary_context, bytes_of(wire::PrimaryContext{kContext, 0, 0}), false,
                      0);
  tenant.client->retain();
  CHECK(tenant.set_limit(CU_LIMIT_MALLOC_HEAP_SIZE, 5000) == CUDA_SUCCESS);
  CHECK(tenant.used() <= 1000);  // no charge of the first context
}

TEST_CASE("charges a context by the decrease of free device memory") {
  Limited tenant(2 * kPage, [](FakeDriver& fake) { fake.context_bytes = 3 * kPage / 2; });
  const auto create = [&](uint64_t handle) {
    return tenant.client->ask(Command::create_context, bytes_of(wire::CreateContext{handle, 0, 0}));
  };
  CHECK(create(kSecond) == CUDA_SUCCESS);
  CHECK(tenant.used() == 3 * kPage / 2);
  CHECK(create(make_handle(Kind::context, 1, 3)) == CUDA_ERROR_OUT_OF_MEMORY);
  CHECK(tenant.client->fake.used() == 3 * kPage / 2);
  CHECK(tenant.map(0, 1) == CUDA_ERROR_OUT_OF_MEMORY);
  CHECK(tenant.client->ask(Command::destroy_context, bytes_of(wire::DestroyContext{kSecond})) ==
        CUDA_SUCCESS);
  CHECK(tenant.used() == 0);
  CHECK(tenant.map(0, 2) == CUDA_SUCCESS);
}

TEST_CASE("charges the first context where the driver reports its size") {
  const auto told = GENERATE(FakeDriver::TellsUse::of_process, FakeDriver::TellsUse::of_device);
  Limited tenant(4 * kPage, [&](FakeDriver& fake) {
    fake.primary_bytes = 3 * kPage;
    fake.context_bytes = kPage / 2;
    fake.tells_use = told;
  });
  const auto again = [&] {
    return tenant.client->reply(tenant.client->send(Command::retain_primary_context,
                                                    bytes_of(wire::PrimaryContext{kContext, 0, 0}), true, 0));
  };
  CHECK(again().header.result == CUDA_SUCCESS);  // a second retain
  CHECK(tenant.used() == 3 * kPage);
  CHECK(tenant.map(0, 2) == CUDA_ERROR_OUT_OF_MEMORY);
  CHECK(tenant.map(0, 1) == CUDA_SUCCESS);
  tenant.free(0, 1);
  CHECK(tenant.client->ask(Command::create_context, bytes_of(wire::CreateContext{kSecond, 0, 0})) ==
        CUDA_SUCCESS);
  CHECK(tenant.used() == 3 * kPage + kPage / 2);
  CHECK(tenant.client->ask(Command::destroy_context, bytes_of(wire::DestroyContext{kSecond})) ==
        CUDA_SUCCESS);
  for (int i = 0; i < 2; ++i)
    tenant.client->send(Command::release_primary_context, bytes_of(wire::PrimaryContext{kContext, 0, 0}),
                        false, 0);
  const Message made = again();
  CHECK(made.header.result == CUDA_SUCCESS);
  CHECK(made.as<uint64_t>() == kContext);  // despite the earlier errors
  CHECK(tenant.used() == 3 * kPage);
}

TEST_CASE("memory that another session of the tenant frees meanwhile does not hide a context") {
  Limited tenant(16 * kPage, [&](FakeDriver& fake) {
    fake.primary_bytes = 3 * kPage;
    fake.context_bytes = 2 * kPage;
    fake.tells_use = FakeDriver::TellsUse::of_device;
  });
  TestClient& client = *tenant.client;
  REQUIRE(client.ask("cuCtxGetCacheConfig", bytes_of(uint8_t{1})) == CUDA_SUCCESS);
  REQUIRE(tenant.used() == 3 * kPage);
  const auto other = std::move(*tenant.accounts.take("t"));
  auto& charged = (**tenant.accounts.of("t"))->sessions[other->slot()].memory_used[0];
  const auto frees = [&](uint64_t device_bytes) {
    charged = 4 * kPage;
    client.fake.locked([&] {
      client.fake.memory_used += device_bytes;
      client.fake.in_new_context = [&fake = client.fake, &charged, device_bytes] {
        fake.memory_used -= device_bytes;
        charged = 0;
      };
    });
  };
  frees(4 * kPage);
  CHECK(client.ask(Command::create_context, bytes_of(wire::CreateContext{kSecond, 0, 0})) == CUDA_SUCCESS);
  CHECK(tenant.used() == 5 * kPage);
  CHECK(client.ask(Command::destroy_context, bytes_of(wire::DestroyContext{kSecond})) == CUDA_SUCCESS);
  CHECK(tenant.used() == 3 * kPage);
  client.fake.locked([&] { client.fake.in_new_context = nullptr; });
}

TEST_CASE("charges the first context with all memory in use where no earlier measurement exists") {
  Limited tenant(8 * kPage, [](FakeDriver& fake) {
    fake.memory_used = 2 * kPage;  // of another process
    fake.primary_bytes = 3 * kPage;
    fake.context_bytes = kPage;
  });
  CHECK(tenant.map(0, 4) == CUDA_ERROR_OUT_OF_MEMORY);
  CHECK(tenant.used() == 5 * kPage);
  CHECK(tenant.client->ask(Command::create_context, bytes_of(wire::CreateContext{kSecond, 0, 0})) ==
        CUDA_SUCCESS);
  CHECK(tenant.used() == 6 * kPage);  // measured, because the first context exists
  tenant.client->send(Command::release_primary_context, bytes_of(wire::PrimaryContext{kContext, 0, 0}), false,
                      0);
  CHECK(tenant.client->ask(Command::destroy_context, bytes_of(wire::DestroyContext{kSecond})) ==
        CUDA_SUCCESS);
  CHECK(tenant.used() == 0);
}

TEST_CASE("refuses a first context that exceeds the quota and the session continues") {
  Limited tenant(2 * kPage, [](FakeDriver& fake) {
    fake.primary_bytes = 3 * kPage;
    fake.tells_use = FakeDriver::TellsUse::of_process;
  });
  const auto retain = [&] {
    return tenant.client->reply(tenant.client->send(Command::retain_primary_context,
                                                    bytes_of(wire::PrimaryContext{kContext, 0, 0}), true, 0));
  };
  const Message refused = retain();
  CHECK(refused.header.result == CUDA_ERROR_OUT_OF_MEMORY);
  CHECK(refused.body.empty());
  CHECK(tenant.used() == 0);
  CHECK(tenant.client->fake.used() == 0);
  CHECK(tenant.refused() == 2);  // Limited's own retain was also refused
  REQUIRE(tenant.accounts.set("t", {.each = {.memory_bytes = 3 * kPage}}));
  // Created; the deferred error of Limited's retain is in the same reply.
  CHECK(retain().as<uint64_t>() == kContext);
  CHECK(retain().header.result == CUDA_SUCCESS);
  CHECK(tenant.used() == 3 * kPage);
}

TEST_CASE("reports free memory according to the quota") {
  Limited tenant(5 * kPage);
  CHECK(tenant.map(0, 2) == CUDA_SUCCESS);
  const auto info = [&] {
    const Message reply =
        tenant.client->reply(tenant.client->call("cuMemGetInfo_v2", bytes_of(uint8_t{1}, uint8_t{1}), true));
    return std::pair(reply.as<uint64_t>(0), reply.as<uint64_t>(8));
  };
  CHECK(info() == std::pair(3 * kPage, 5 * kPage));
  REQUIRE(tenant.accounts.set("t", {.each = {.memory_bytes = kPage}}));
  CHECK(info() == std::pair(uint64_t{0}, kPage));
  CHECK(tenant.map(10, 1) == CUDA_ERROR_OUT_OF_MEMORY);
  CHECK(tenant.used() == 2 * kPage);
  REQUIRE(tenant.accounts.set("t", {.each = {.memory_bytes = 3 * kPage}}));
  CHECK(info() == std::pair(kPage, 3 * kPage));
  CHECK(tenant.map(10, 1) == CUDA_SUCCESS);
  REQUIRE(tenant.accounts.set("t", {.each = {.memory_bytes = 2 * FakeDriver::kMemory}}));
  CHECK(info() == std::pair(FakeDriver::kMemory - 3 * kPage, uint64_t{FakeDriver::kMemory}));
}

// The worker's own stream is the fake driver's first one; it is created with the first memory to be zeroed.
TEST_CASE("zeroing new memory delays only commands that may access memory") {
  Limited tenant(0, [](FakeDriver& fake) { fake.zeroes_memory = false; });
  TestClient& client = *tenant.client;
  CHECK(tenant.map(0, 1) == CUDA_SUCCESS);
  REQUIRE(client.fake.streams_alive() == 1);
  client.create_stream(0);
  client.fake.hold(0);
  CHECK(tenant.map(2, 2) == CUDA_SUCCESS);
  const auto is_zero = [](const std::vector<std::byte>& bytes) {
    return std::all_of(bytes.begin(), bytes.end(), [](std::byte byte) { return byte == std::byte{0}; });
  };
  const auto held = [&] { return client.fake.locked([&] { return !client.fake.streams[0]->work.empty(); }); };
  CHECK(held());
  SECTION("copies and fills wait in their streams") {
    const uint64_t read = client.copy_out(stream_handle(0), 2 * kPage, 2 * kPage);
    CHECK(client.silent());
    client.fake.let_go(0);
    CHECK(is_zero(client.data(read)));
  }
  SECTION("the null stream, too, and copies that pass others") {
    client.call("cuMemsetD8Async",
                bytes_of(client.address(2 * kPage), uint8_t{7}, uint64_t{kPage}, uint64_t{0}));
    auto copy = bytes_of(
        wire::CopyToDevice{stream_handle(0), client.address(3 * kPage), 0, 1, 1, wire::kCopyPassesOthers, 0});
    copy.push_back(std::byte{8});
    client.send(Command::copy_to_device, copy);
    const auto copied = client.send(Command::synchronize_context, {}, true);
    CHECK(client.silent());
    client.fake.let_go(0);
    CHECK(client.result(copied) == CUDA_SUCCESS);
    const auto bytes = client.data(client.copy_out(0, 2 * kPage, 2 * kPage));
    CHECK(bytes[0] == std::byte{7});
    CHECK(bytes[kPage] == std::byte{8});
    CHECK(is_zero({bytes.begin() + kPage + 1, bytes.end()}));
  }
  SECTION("another context is made when it is done, since nothing there would wait") {
    const auto made =
        client.send(Command::create_context, bytes_of(wire::CreateContext{kSecond, 0, 0}), true);
    CHECK(client.silent());
    client.fake.let_go(0);
    CHECK(client.result(made) == CUDA_SUCCESS);
    client.fake.hold(0);
    const auto next = client.send(Command::map_memory,
                                  bytes_of(wire::MapMemory{client.address(10 * kPage), kPage, 0, 0}), true);
    CHECK(client.silent());  // from then on, the reply waits for the zeroing
    client.fake.let_go(0);
    CHECK(client.result(next) == CUDA_SUCCESS);
  }
  SECTION("memory that is freed meanwhile stays mapped until it is zeroed") {
    tenant.free(2, 2);
    CHECK(client.ask("cuCtxGetCacheConfig", bytes_of(uint8_t{1})) == CUDA_SUCCESS);
    CHECK(client.fake.used() == 3 * kPage);
    client.fake.let_go(0);
    CHECK(client.ask("cuCtxGetCacheConfig", bytes_of(uint8_t{1})) == CUDA_SUCCESS);
    CHECK(client.fake.used() == kPage);
  }
  SECTION("the session's end waits for it") {
    client.hang_up();
    client.fake.let_go(0);
  }
}

TEST_CASE("counts memory that could not be zeroed in the peak") {
  Limited tenant(0, [](FakeDriver& fake) { fake.zeroes_memory = false; });
  TestClient& client = *tenant.client;
  CHECK(tenant.map(0, 1) == CUDA_SUCCESS);
  REQUIRE(client.fake.streams_alive() == 1);  // the stream that zeroes memory
  CHECK(client.ask(Command::create_context, bytes_of(wire::CreateContext{kSecond, 0, 0})) == CUDA_SUCCESS);
  client.fake.hold(0);
  const auto map = [&](uint64_t at, uint64_t pages) {
    return client.send(Command::map_memory,
                       bytes_of(wire::MapMemory{client.address(at * kPage), pages * kPage, 0, 0}), true);
  };
  map(10, 2);
  map(20, 3);
  client.fake.await_blocked(2);
  client.fake.locked([&] {
    client.fake.sticky = CUDA_ERROR_ILLEGAL_ADDRESS;
    client.fake.streams[0]->work.clear();
    client.fake.changed.notify_all();
  });
  for (int i = 0; i < 2; ++i) CHECK(client.receive().header.result == CUDA_ERROR_ILLEGAL_ADDRESS);
  client.fake.locked([&] { client.fake.sticky = CUDA_SUCCESS; });
  client.fake.let_go(0);
  CHECK((*tenant.page)->gpus[0].memory_peak - (*tenant.page)->gpus[0].memory_used == 5 * kPage);
}

TEST_CASE("memory is zero when a client gets it") {
  const bool clean = GENERATE(true, false);
  Limited tenant(0, [&](FakeDriver& fake) { fake.zeroes_memory = clean; });
  CHECK(tenant.map(0, 2) == CUDA_SUCCESS);
  CHECK(tenant.create(kMemory, 2) == CUDA_SUCCESS);
  const uint64_t at = tenant.client->address(20 * kPage);
  CHECK(tenant.client->ask("cuMemMap", bytes_of(at, uint64_t{2 * kPage}, uint64_t{0}, kMemory,
                                                uint64_t{0})) == CUDA_SUCCESS);
  const CUmemAccessDesc access{{CU_MEM_LOCATION_TYPE_DEVICE, 0}, CU_MEM_ACCESS_FLAGS_PROT_READ};
  const auto allow = bytes_of(at, uint64_t{2 * kPage}, uint8_t{1}, uint64_t{1}, access, uint64_t{1});
  CHECK(tenant.client->ask("cuMemSetAccess", allow) == CUDA_SUCCESS);
  for (const uint64_t offset : {uint64_t{0}, 20 * kPage}) {
    const auto bytes = tenant.client->data(tenant.client->copy_out(0, offset, 2 * kPage));
    CHECK(std::all_of(bytes.begin(), bytes.end(), [](std::byte byte) { return byte == std::byte{0}; }));
  }
  CHECK(tenant.client->fake.streams_alive() == (clean ? 0 : 1));
}
