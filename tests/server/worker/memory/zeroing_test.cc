// Tests that new memory is zeroed while the session continues: the command that asked for it is answered when
// it is zeroed, and no handle or address refers to it before.
#include <algorithm>
#include <map>

#include "protocol/wire/commands.h"
#include "protocol/wire/copies.h"
#include "tests/server/worker/test_client.h"
#include "tests/support/catch.h"

using namespace gpupool;
using namespace gpupool::worker;
using namespace gpupool::worker::test;
using cuda::Kind;
using cuda::make_handle;
using wire::Command;

namespace {

constexpr uint64_t kPage = FakeDriver::kGranularity;
constexpr uint64_t kMemory = make_handle(Kind::memory, 1, 300);
constexpr uint64_t kArray = make_handle(Kind::array, 1, 301);
constexpr uint64_t kLevels = make_handle(Kind::mipmapped_array, 1, 302);
constexpr uint64_t kLevel = make_handle(Kind::array, 1, 303);
constexpr uint64_t kSecond = make_handle(Kind::context, 1, 2);
constexpr uint8_t kThere = 1;
constexpr CUDA_ARRAY3D_DESCRIPTOR kShape{16, 8, 4, CU_AD_FORMAT_FLOAT, 2, 0};
constexpr uint64_t kRow = 16 * 8, kTexels = kRow * 8 * 4;

// A session that zeroes memory. The worker's own stream is the fake driver's first one, created with the
// first memory to be zeroed; it can be held, as if a kernel kept the device busy.
struct Busy {
  Busy() {
    client.retain();
    CHECK(client.ask(Command::map_memory, bytes_of(wire::MapMemory{client.address(0), 2 * kPage, 0, 0})) ==
          CUDA_SUCCESS);
    REQUIRE(client.fake.streams_alive() == 1);
    client.create_stream(0);
  }
  void hold() { client.fake.hold(0); }
  void let_go() { client.fake.let_go(0); }
  uint64_t map(uint64_t at) {
    return client.send(Command::map_memory,
                       bytes_of(wire::MapMemory{client.address(at * kPage), 2 * kPage, 0, 0}), true);
  }
  uint64_t create_memory() {
    CUmemAllocationProp properties{};
    properties.type = CU_MEM_ALLOCATION_TYPE_PINNED;
    properties.location = {CU_MEM_LOCATION_TYPE_DEVICE, 0};
    return client.call("cuMemCreate", bytes_of(kMemory, uint64_t{2 * kPage}, kThere, properties, uint64_t{0}),
                       true);
  }
  CUresult map_created() {
    return client.ask("cuMemMap", bytes_of(client.address(20 * kPage), uint64_t{2 * kPage}, uint64_t{0},
                                           kMemory, uint64_t{0}));
  }
  uint64_t create_array() {
    return client.call("cuArray3DCreate_v2", bytes_of(kArray, kThere, kShape), true);
  }
  uint64_t create_levels() {
    return client.call("cuMipmappedArrayCreate", bytes_of(kLevels, kThere, kShape, 3u), true);
  }
  CUresult part_of_levels() {
    return client.ask(Command::array_part, bytes_of(wire::ArrayPart{kLevel, kLevels, 1, 0}));
  }
  // Copies to the memory that was mapped first.
  CUresult read_array(uint64_t array, uint64_t width, uint64_t height, uint64_t depth) {
    CUDA_MEMCPY3D copy{};
    copy.srcMemoryType = CU_MEMORYTYPE_ARRAY;
    copy.srcArray = reinterpret_cast<CUarray>(array);
    copy.dstMemoryType = CU_MEMORYTYPE_DEVICE;
    copy.dstDevice = client.address(0);
    copy.dstPitch = copy.WidthInBytes = width;
    copy.dstHeight = copy.Height = height;
    copy.Depth = depth;
    return client.ask("cuMemcpy3DAsync_v2", bytes_of(kThere, copy, stream_handle(0)));
  }
  // Runs work of another thread in stream 0 and checks its result.
  bool others_go_on() {
    client.call("cuMemsetD8Async", bytes_of(client.address(0), uint8_t{7}, kTexels, stream_handle(0)));
    const auto bytes = client.data(client.copy_out(stream_handle(0), 0, kTexels));
    return std::all_of(bytes.begin(), bytes.end(), [](std::byte byte) { return byte == std::byte{7}; });
  }
  bool is_zero(uint64_t at, uint64_t size) {
    const auto bytes = client.data(client.copy_out(stream_handle(0), at * kPage, size));
    return bytes.size() == size &&
           std::all_of(bytes.begin(), bytes.end(), [](std::byte byte) { return byte == std::byte{0}; });
  }
  // Results of the next `count` replies, which may come in any order.
  std::map<uint64_t, CUresult> results(int count) {
    std::map<uint64_t, CUresult> found;
    for (int i = 0; i < count; ++i) {
      const Message reply = client.receive();
      found[reply.header.sequence] = static_cast<CUresult>(reply.header.result);
    }
    return found;
  }
  void create_context() {
    CHECK(client.ask(Command::create_context, bytes_of(wire::CreateContext{kSecond, 0, 0})) == CUDA_SUCCESS);
  }

  TestClient client{false,   nullptr, 0,  false,
                    nullptr, false,   {}, [](FakeDriver& fake) { fake.zeroes_memory = false; }};
};

}  // namespace

TEST_CASE("zeroing memory of cuMemCreate holds up only the call that makes it") {
  const bool several = GENERATE(false, true);
  Busy busy;
  if (several) busy.create_context();
  busy.hold();
  const uint64_t asked = busy.create_memory();
  CHECK(busy.others_go_on());
  CHECK(busy.map_created() == CUDA_ERROR_INVALID_VALUE);  // refers to nothing yet
  CHECK(busy.client.silent());
  busy.let_go();
  CHECK(busy.client.result(asked) == CUDA_SUCCESS);
  REQUIRE(busy.map_created() == CUDA_SUCCESS);
  const CUmemAccessDesc access{{CU_MEM_LOCATION_TYPE_DEVICE, 0}, CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
  CHECK(busy.client.ask("cuMemSetAccess", bytes_of(busy.client.address(20 * kPage), uint64_t{2 * kPage},
                                                   kThere, uint64_t{1}, access, uint64_t{1})) ==
        CUDA_SUCCESS);
  CHECK(busy.is_zero(20, 2 * kPage));
  CHECK(busy.client.fake.used() == 4 * kPage);
  CHECK(busy.client.fake.locked([&] { return busy.client.fake.mapped.size(); }) ==
        2);  // no longer mapped where it was zeroed
}

TEST_CASE("zeroing arrays holds up only the call that makes them") {
  const bool several = GENERATE(false, true);
  Busy busy;
  if (several) busy.create_context();
  busy.hold();
  const uint64_t array = busy.create_array(), levels = busy.create_levels();
  CHECK(busy.others_go_on());
  CHECK(busy.read_array(kArray, kRow, 8, 4) == CUDA_ERROR_INVALID_HANDLE);
  CHECK(busy.part_of_levels() == CUDA_ERROR_INVALID_HANDLE);
  CHECK(busy.client.ask(Command::destroy_array, bytes_of(wire::DestroyArray{kArray})) ==
        CUDA_ERROR_INVALID_HANDLE);
  CHECK(busy.client.silent());
  busy.let_go();
  CHECK(busy.results(2) == std::map<uint64_t, CUresult>{{array, CUDA_SUCCESS}, {levels, CUDA_SUCCESS}});
  CHECK(busy.read_array(kArray, kRow, 8, 4) == CUDA_SUCCESS);
  CHECK(busy.is_zero(0, kTexels));
  REQUIRE(busy.part_of_levels() == CUDA_SUCCESS);
  CHECK(busy.others_go_on());
  CHECK(busy.read_array(kLevel, kRow / 2, 4, 2) == CUDA_SUCCESS);
  CHECK(busy.is_zero(0, kRow / 2 * 4 * 2));
  CHECK(busy.client.ask(Command::destroy_array, bytes_of(wire::DestroyArray{kArray})) == CUDA_SUCCESS);
}

TEST_CASE("with several contexts, zeroing a mapping holds up only the call that makes it") {
  Busy busy;
  busy.create_context();
  busy.hold();
  const uint64_t first = busy.map(10), same = busy.map(10);
  CHECK(busy.others_go_on());
  CHECK(busy.client.ask("cuMemsetD8Async", bytes_of(busy.client.address(10 * kPage), uint8_t{1}, uint64_t{16},
                                                    stream_handle(0))) == CUDA_ERROR_INVALID_VALUE);
  CHECK(busy.client.silent());
  busy.let_go();
  int refused = 0;  // the later one finds the address in use
  for (int i = 0; i < 2; ++i) {
    const Message reply = busy.client.receive();
    CHECK((reply.header.sequence == first || reply.header.sequence == same));
    refused += reply.header.result == CUDA_ERROR_INVALID_VALUE;
    if (reply.header.result == CUDA_SUCCESS) CHECK(reply.as<uint64_t>() == busy.client.address(10 * kPage));
  }
  CHECK(refused == 1);
  CHECK(busy.is_zero(10, 2 * kPage));
  CHECK(busy.client.fake.used() == 4 * kPage);
}

TEST_CASE("does not bind a handle to memory that could not be zeroed") {
  Busy busy;
  busy.create_context();
  busy.hold();
  const uint64_t memory = busy.create_memory(), mapping = busy.map(10), array = busy.create_array();
  CHECK(busy.others_go_on());
  busy.client.fake.await_blocked(3);
  busy.client.fake.locked([&] {
    busy.client.fake.sticky = CUDA_ERROR_ILLEGAL_ADDRESS;
    busy.client.fake.streams[0]->work.clear();  // a broken context executes no work
    busy.client.fake.changed.notify_all();
  });
  auto results = busy.results(3);
  for (const uint64_t one : {memory, mapping, array}) CHECK(results[one] == CUDA_ERROR_ILLEGAL_ADDRESS);
  busy.client.fake.locked([&] { busy.client.fake.sticky = CUDA_SUCCESS; });
  CHECK(busy.map_created() == CUDA_ERROR_INVALID_VALUE);
  CHECK(busy.read_array(kArray, kRow, 8, 4) == CUDA_ERROR_INVALID_HANDLE);
  CHECK(busy.client.ask("cuMemsetD8Async", bytes_of(busy.client.address(10 * kPage), uint8_t{1}, uint64_t{16},
                                                    stream_handle(0))) == CUDA_ERROR_INVALID_VALUE);
  busy.let_go();
}

TEST_CASE("finishes zeroing before the session ends") {
  Busy busy;
  busy.create_context();
  busy.hold();
  busy.create_memory();
  busy.create_array();
  busy.map(10);
  CHECK(busy.others_go_on());
  SECTION("when the client leaves") {
    busy.client.hang_up();
  }
  SECTION("and before a context is destroyed") {
    const uint64_t destroyed =
        busy.client.send(Command::destroy_context, bytes_of(wire::DestroyContext{kSecond}), true);
    busy.let_go();
    while (busy.client.receive().header.sequence != destroyed) {
    }
    CHECK(busy.client.fake.used() == 6 * kPage + kTexels);
    CHECK(busy.is_zero(10, 2 * kPage));
  }
  busy.let_go();
  busy.client.hang_up();
  busy.client.finish();
  CHECK(busy.client.fake.arrays.empty());
  CHECK(busy.client.fake.used() == 0);
  CHECK(busy.client.fake.pinned_count() == 0);
}
