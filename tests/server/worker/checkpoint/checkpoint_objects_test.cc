// Tests checkpoint and restore of a session with virtual memory mappings and arrays. The test acts as poold.
#include <unistd.h>

#include <cstring>

#include "protocol/wire/commands.h"
#include "protocol/wire/copies.h"
#include "tests/server/worker/checkpoint/checkpointed_session.h"
#include "tests/support/catch.h"

using namespace gpupool;
using namespace gpupool::worker;
using namespace gpupool::worker::test;
using cuda::Kind;
using cuda::make_handle;
using wire::CheckpointAction;
using wire::Command;

namespace {

constexpr uint64_t kWhole = make_handle(Kind::memory, 1, 300), kUnmapped = make_handle(Kind::memory, 1, 301),
                   kReleased = make_handle(Kind::memory, 1, 302);
constexpr uint64_t kArray = make_handle(Kind::array, 1, 310),
                   kLevels = make_handle(Kind::mipmapped_array, 1, 311),
                   kLevel = make_handle(Kind::array, 1, 312),
                   kReference = make_handle(Kind::texture_reference, 1, 313);
constexpr uint8_t kThere = 1;
constexpr CUDA_ARRAY3D_DESCRIPTOR kShape{64, 32, 3, CU_AD_FORMAT_FLOAT, 2, CUDA_ARRAY3D_SURFACE_LDST};
constexpr uint64_t kRow = kShape.Width * 8;

// Virtual memory: one allocation of two pages that is mapped twice, one that is not mapped, and one with a
// released handle.
struct Mapped : CheckpointedSession {
  Mapped() {
    create(kWhole, 2);
    create(kUnmapped, 1);
    create(kReleased, 1);
    map(8, 2, 0, kWhole, CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
    map(12, 1, 1, kWhole, CU_MEM_ACCESS_FLAGS_PROT_READ);
    map(14, 1, 0, kUnmapped, CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
    map(16, 1, 0, kReleased, CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
    for (const uint64_t page : {8, 9, 14, 16})
      REQUIRE(client->result(client->copy_in(0, page * kPage, content(page), true)) == CUDA_SUCCESS);
    unmap(14, 1);
    set_access(16, 1, CU_MEM_ACCESS_FLAGS_PROT_NONE);
    REQUIRE(client->ask("cuMemRelease", bytes_of(kReleased)) == CUDA_SUCCESS);
    before = charged();
  }
  void create(uint64_t handle, uint64_t pages) {
    CUmemAllocationProp properties{};
    properties.type = CU_MEM_ALLOCATION_TYPE_PINNED;
    properties.location = {CU_MEM_LOCATION_TYPE_DEVICE, 0};
    REQUIRE(client->ask("cuMemCreate", bytes_of(handle, uint64_t{pages * kPage}, kThere, properties,
                                                uint64_t{0})) == CUDA_SUCCESS);
  }
  void map(uint64_t page, uint64_t pages, uint64_t first, uint64_t handle, CUmemAccess_flags flags) {
    REQUIRE(client->ask("cuMemMap", bytes_of(client->address(page * kPage), pages * kPage, first * kPage,
                                             handle, uint64_t{0})) == CUDA_SUCCESS);
    set_access(page, pages, flags);
  }
  void set_access(uint64_t page, uint64_t pages, CUmemAccess_flags flags) {
    const CUmemAccessDesc access{{CU_MEM_LOCATION_TYPE_DEVICE, 0}, flags};
    const auto body =
        bytes_of(client->address(page * kPage), pages * kPage, kThere, uint64_t{1}, access, uint64_t{1});
    REQUIRE(client->ask("cuMemSetAccess", body) == CUDA_SUCCESS);
  }
  void unmap(uint64_t page, uint64_t pages) {
    REQUIRE(client->ask("cuMemUnmap", bytes_of(client->address(page * kPage), pages * kPage)) ==
            CUDA_SUCCESS);
  }
  int access(uint64_t page) {
    return client->fake.locked([&] {
      const auto known = client->fake.mapped.find(client->address(page * kPage));
      return known == client->fake.mapped.end() ? -1 : known->second.access[0];
    });
  }
  std::vector<std::byte> read(uint64_t page) {
    return client->data(client->copy_out(stream_handle(0), page * kPage, kPage));
  }
  // Checks that everything is as created.
  void check_all() {
    CHECK(charged() == before);
    CHECK(own() == 8 * kPage);
    CHECK(access(8) == CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
    CHECK(access(12) == CU_MEM_ACCESS_FLAGS_PROT_READ);
    CHECK(access(14) == -1);
    CHECK(access(16) == CU_MEM_ACCESS_FLAGS_PROT_NONE);
    CHECK(intact());
    CHECK(read(8) == content(8));
    CHECK(read(9) == content(9));
    CHECK(read(12) == content(9));
    // Both mappings still share one allocation.
    REQUIRE(client->result(client->copy_in(0, 9 * kPage, content(77), true)) == CUDA_SUCCESS);
    CHECK(read(12) == content(77));
    set_access(16, 1, CU_MEM_ACCESS_FLAGS_PROT_READ);
    CHECK(read(16) == content(16));
    map(14, 1, 0, kUnmapped, CU_MEM_ACCESS_FLAGS_PROT_READ);
    CHECK(read(14) == content(14));
  }

  uint64_t before = 0;
};

// A session with an array, a mipmapped array of which one level has a handle, a texture on each, and a
// surface on the level.
struct WithArrays : CheckpointedSession {
  WithArrays() {
    REQUIRE(client->ask("cuArray3DCreate_v2", bytes_of(kArray, kThere, kShape)) == CUDA_SUCCESS);
    REQUIRE(client->ask("cuMipmappedArrayCreate", bytes_of(kLevels, kThere, kShape, 3u)) == CUDA_SUCCESS);
    REQUIRE(client->ask(Command::array_part, bytes_of(wire::ArrayPart{kLevel, kLevels, 1, 0})) ==
            CUDA_SUCCESS);
    copy(kArray, 0, true, kShape.Width, kShape.Height, kShape.Depth);
    copy(kLevel, 1, true, kShape.Width / 2, kShape.Height / 2, 1);
    resource.resType = CU_RESOURCE_TYPE_ARRAY;
    resource.res.array.hArray = reinterpret_cast<CUarray>(kArray);
    numbers.push_back(made("cuTexObjectCreate",
                           bytes_of(kThere, kThere, resource, kThere, CUDA_TEXTURE_DESC{}, uint8_t{0})));
    numbers.push_back(made("cuTexObjectCreate",
                           bytes_of(kThere, kThere, resource, kThere, CUDA_TEXTURE_DESC{}, uint8_t{0})));
    resource.res.array.hArray = reinterpret_cast<CUarray>(kLevel);
    numbers.push_back(made("cuSurfObjectCreate", bytes_of(kThere, kThere, resource)));
    resource.resType = CU_RESOURCE_TYPE_MIPMAPPED_ARRAY;
    resource.res.mipmap.hMipmappedArray = reinterpret_cast<CUmipmappedArray>(kLevels);
    numbers.push_back(made("cuTexObjectCreate",
                           bytes_of(kThere, kThere, resource, kThere, CUDA_TEXTURE_DESC{}, uint8_t{0})));
    before = charged();
    used = own();
    // Leaves an unused number, which the driver assigns first.
    REQUIRE(client->ask("cuTexObjectDestroy", bytes_of(numbers.front())) == CUDA_SUCCESS);
    numbers.erase(numbers.begin());
  }
  uint64_t made(const char* call, const wire::Buffer& body) {
    const Message reply = client->reply(client->call(call, body, true));
    REQUIRE(reply.header.result == CUDA_SUCCESS);
    return reply.as<uint64_t>();
  }
  // Copies between the array and the session's page `page`.
  void copy(uint64_t array, uint64_t page, bool in, size_t width, size_t height, size_t depth) {
    CUDA_MEMCPY3D c{};
    c.srcMemoryType = in ? CU_MEMORYTYPE_DEVICE : CU_MEMORYTYPE_ARRAY;
    c.dstMemoryType = in ? CU_MEMORYTYPE_ARRAY : CU_MEMORYTYPE_DEVICE;
    (in ? c.dstArray : c.srcArray) = reinterpret_cast<CUarray>(array);
    (in ? c.srcDevice : c.dstDevice) = client->address(page * kPage);
    c.srcPitch = c.dstPitch = c.WidthInBytes = width * 8;
    c.srcHeight = c.dstHeight = c.Height = height;
    c.Depth = depth;
    REQUIRE(client->ask("cuMemcpy3DAsync_v2", bytes_of(kThere, c, stream_handle(0))) == CUDA_SUCCESS);
  }
  std::vector<std::byte> read(uint64_t array, size_t width, size_t height, size_t depth) {
    copy(array, 3, false, width, height, depth);
    return client->data(client->copy_out(stream_handle(0), 3 * kPage, width * 8 * height * depth));
  }
  std::vector<std::byte> first(uint64_t page, size_t bytes) {
    auto all = content(page);
    all.resize(bytes);
    return all;
  }
  void check_all() {
    CHECK(charged() == before);
    CHECK(own() == used);
    CHECK(intact());
    CHECK(read(kArray, kShape.Width, kShape.Height, kShape.Depth) ==
          first(0, kRow * kShape.Height * kShape.Depth));
    CHECK(read(kLevel, kShape.Width / 2, kShape.Height / 2, 1) == first(1, kRow * kShape.Height / 4));
    const auto textures = client->fake.locked([&] { return client->fake.textures; });
    REQUIRE(textures.size() == numbers.size());
    std::set<void*> named;
    for (const uint64_t number : numbers) {
      REQUIRE(textures.contains(number));
      named.insert(textures.at(number));
    }
    CHECK(named.size() == 3);
    CHECK(client->fake.locked([&] {
      return std::includes(client->fake.arrays.begin(), client->fake.arrays.end(), named.begin(),
                           named.end());
    }));
    CHECK(client->fake.misused == 0);
  }

  CUDA_RESOURCE_DESC resource{};
  std::vector<uint64_t> numbers;
  uint64_t before = 0, used = 0;
};

}  // namespace

TEMPLATE_TEST_CASE("checkpoints and restores all kinds of objects and their quota", "", Mapped, WithArrays) {
  TestType session;
  for (int round = 0; round < 2; ++round) {
    session.change_all({CheckpointAction::lock, CheckpointAction::checkpoint});
    CHECK(session.own() == 0);
    CHECK(session.charged() == 0);
    CHECK(session.gpu().memory_checkpointed == session.before);
    session.change_all({CheckpointAction::restore});
    CHECK(session.gpu().memory_checkpointed == 0);
    session.change_all({CheckpointAction::unlock});
  }
  session.check_all();
}

TEMPLATE_TEST_CASE("a restore of all kinds of objects that fails for lack of memory can be repeated", "",
                   Mapped, WithArrays) {
  TestType session;
  session.change_all({CheckpointAction::lock, CheckpointAction::checkpoint});
  const uint64_t all = session.before;
  for (const uint64_t left : {uint64_t{0}, kPage, 4 * kPage, 5 * kPage}) {
    session.leave_free(left);
    CHECK(session.change(CheckpointAction::restore) == CUDA_ERROR_OUT_OF_MEMORY);
    CHECK(session.own() == 0);
    CHECK(session.charged() == 0);
    session.others_go();
  }
  auto& account = **session.accounts.of("t");
  account->memory_limit[0] = all - 1;
  CHECK(session.change(CheckpointAction::restore) == CUDA_ERROR_OUT_OF_MEMORY);
  CHECK(session.own() == 0);
  account->memory_limit[0] = 0;
  session.change_all({CheckpointAction::restore, CheckpointAction::unlock});
  session.check_all();
}

TEMPLATE_TEST_CASE("a failed checkpoint of all kinds of objects changes nothing", "", Mapped, WithArrays) {
  TestType session;
  session.change_all({CheckpointAction::lock});
  SECTION("host memory") {
    CHECK(session.change(CheckpointAction::checkpoint, 4 * kPage) == CUDA_ERROR_OUT_OF_MEMORY);
  }
  SECTION("the last to go stays") {
    session.client->fake.locked([&] { session.client->fake.stuck = session.client->address(3 * kPage); });
    CHECK(session.change(CheckpointAction::checkpoint) == CUDA_ERROR_INVALID_VALUE);
    session.client->fake.locked([&] { session.client->fake.stuck = 0; });
  }
  session.change_all({CheckpointAction::unlock});
  session.check_all();
}

TEMPLATE_TEST_CASE("releases everything once when a session ends while it is checkpointed", "", Mapped,
                   WithArrays) {
  TestType session;
  session.change_all({CheckpointAction::lock, CheckpointAction::checkpoint});
  session.client->cut();
  session.client->finish();
  CHECK(session.charged() == 0);
  CHECK(session.gpu().memory_checkpointed == 0);
  CHECK(session.client->fake.misused == 0);
  CHECK(session.client->fake.physical.empty());
  CHECK(session.client->fake.arrays.empty());
  CHECK(session.client->fake.textures.empty());
}

TEST_CASE("frees memory after the restore that the client freed while it was checkpointed") {
  Mapped session;
  session.change_all({CheckpointAction::lock, CheckpointAction::checkpoint});
  session.client->call("cuMemRelease", bytes_of(kUnmapped));
  session.client->call("cuMemRelease", bytes_of(kWhole));
  const uint64_t unmapped =
      session.client->call("cuMemUnmap", bytes_of(session.client->address(8 * kPage), 2 * kPage), true);
  session.client->call("cuMemUnmap", bytes_of(session.client->address(12 * kPage), kPage));
  session.change_all({CheckpointAction::restore, CheckpointAction::unlock});
  CHECK(session.client->result(unmapped) == CUDA_SUCCESS);
  session.unmap(16, 1);
  CHECK(session.intact());
  CHECK(session.own() == 4 * kPage);
  CHECK(session.charged() == 4 * kPage);
}

TEST_CASE("destroys arrays after the restore that the client destroyed while they were checkpointed") {
  WithArrays session;
  session.change_all({CheckpointAction::lock, CheckpointAction::checkpoint});
  for (const uint64_t number : session.numbers) {
    session.client->call(number == session.numbers[1] ? "cuSurfObjectDestroy" : "cuTexObjectDestroy",
                         bytes_of(number));
  }
  session.client->send(Command::destroy_array, bytes_of(wire::DestroyArray{kArray}));
  const uint64_t destroyed =
      session.client->send(Command::destroy_array, bytes_of(wire::DestroyArray{kLevels}), true);
  session.change_all({CheckpointAction::restore, CheckpointAction::unlock});
  CHECK(session.client->result(destroyed) == CUDA_SUCCESS);
  session.client->finish();
  CHECK(session.client->fake.misused == 0);
  CHECK(session.client->fake.arrays.empty());
  CHECK(session.client->fake.textures.empty());
  CHECK(session.charged() == 0);
}

TEST_CASE("refuses to checkpoint arrays whose objects cannot be created again") {
  WithArrays session;
  const auto refused = [&] {
    session.change_all({CheckpointAction::lock});
    CHECK(session.change(CheckpointAction::checkpoint) == CUDA_ERROR_NOT_SUPPORTED);
    session.change_all({CheckpointAction::unlock});
  };
  SECTION("textures get other numbers") {
    session.client->fake.locked([&] { session.client->fake.driver_reuses_handles = false; });
    refused();
    session.client->fake.locked([&] { session.client->fake.driver_reuses_handles = true; });
  }
  SECTION("a reference names one, for as long as it is there") {
    constexpr uint64_t kBound = make_handle(Kind::array, 1, 314);
    REQUIRE(session.client->ask("cuArray3DCreate_v2", bytes_of(kBound, kThere, kShape)) == CUDA_SUCCESS);
    REQUIRE(session.client->ask("cuTexRefCreate", bytes_of(kReference)) == CUDA_SUCCESS);
    REQUIRE(session.client->ask("cuTexRefSetArray", bytes_of(kReference, kBound, 1u)) == CUDA_SUCCESS);
    refused();
    REQUIRE(session.client->ask(Command::destroy_array, bytes_of(wire::DestroyArray{kBound})) ==
            CUDA_SUCCESS);
  }
  session.change_all({CheckpointAction::lock, CheckpointAction::checkpoint, CheckpointAction::restore,
                      CheckpointAction::unlock});
  session.check_all();
}
