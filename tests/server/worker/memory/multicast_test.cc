// Tests multicast objects and the decompression engine, which softgpu lacks, on a fake driver that has them:
// calls are forwarded only for the session's own memory.
#include "protocol/wire/commands.h"
#include "server/worker/memory/virtual_memory.h"
#include "tests/server/worker/test_client.h"
#include "tests/support/catch.h"

using namespace gpupool;
using namespace gpupool::worker::test;
using cuda::Kind;
using cuda::make_handle;

#if CUDA_VERSION >= 12080
namespace {

constexpr uint64_t kPage = FakeDriver::kGranularity;
constexpr uint64_t kObject = make_handle(Kind::memory, 1, 700), kSecond = make_handle(Kind::memory, 1, 701);
constexpr uint64_t kMemory = make_handle(Kind::memory, 1, 702), kGone = make_handle(Kind::memory, 1, 799);
constexpr uint64_t kFar = ~uint64_t{0} - kPage + 1;
constexpr uint8_t kThere = 1;

class Session : public TestClient {
 public:
  Session() {
    retain();
    map(0, kPage);
    create_stream(0);
  }
  ~Session() {
    finish();
    CHECK(fake.misused == 0);
    CHECK(fake.multicasts.empty());
    CHECK(fake.physical.empty());
  }
  CUresult create(uint64_t handle, uint64_t size, uint64_t handle_types = 0, uint32_t devices = 1) {
    CUmulticastObjectProp properties{};
    properties.numDevices = devices, properties.size = size, properties.handleTypes = handle_types;
    return ask("cuMulticastCreate", bytes_of(handle, kThere, properties));
  }
  CUresult add(uint64_t handle, int device) { return ask("cuMulticastAddDevice", bytes_of(handle, device)); }
  CUresult bind(uint64_t handle, uint64_t offset, uint64_t memory, uint64_t memory_offset, uint64_t size,
                uint64_t flags = 0) {
    return ask("cuMulticastBindMem", bytes_of(handle, offset, memory, memory_offset, size, flags));
  }
  CUresult bind_at(uint64_t handle, uint64_t offset, uint64_t place, uint64_t size) {
    return ask("cuMulticastBindAddr", bytes_of(handle, offset, place, size, uint64_t{0}));
  }
  CUresult unbind(uint64_t handle, int device, uint64_t offset, uint64_t size) {
    return ask("cuMulticastUnbind", bytes_of(handle, device, offset, size));
  }
  CUresult release(uint64_t handle) { return ask("cuMemRelease", bytes_of(handle)); }
  void make_memory(uint64_t pages) {
    CUmemAllocationProp properties{};
    properties.type = CU_MEM_ALLOCATION_TYPE_PINNED;
    properties.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
    REQUIRE(ask("cuMemCreate", bytes_of(kMemory, pages * kPage, kThere, properties, uint64_t{0})) ==
            CUDA_SUCCESS);
  }
  size_t bound() {
    return fake.locked(
        [&] { return fake.multicasts.empty() ? 0 : fake.multicasts.begin()->second.bound.size(); });
  }
};

CUmemDecompressParams operation(uint64_t from, uint64_t from_bytes, uint64_t to, uint64_t to_bytes,
                                uint64_t count) {
  CUmemDecompressParams made{};
  made.src = reinterpret_cast<const void*>(from), made.srcNumBytes = from_bytes;
  made.dst = reinterpret_cast<void*>(to), made.dstNumBytes = to_bytes;
  made.dstActBytes = reinterpret_cast<cuuint32_t*>(count);
  made.algo = CU_MEM_DECOMPRESS_ALGORITHM_LZ4;
  return made;
}

}  // namespace

TEST_CASE("adds devices and memory to multicast objects and releases them") {
  Session client;
  client.make_memory(4);
  CUmulticastObjectProp properties{};
  properties.numDevices = 2, properties.size = 4 * kPage, properties.handleTypes = 8;  // a fabric handle
  const uint64_t asked =
      client.call("cuMulticastGetGranularity", bytes_of(kThere, kThere, properties, uint32_t{0}), true);
  CHECK(client.reply(asked).as<uint64_t>() == kPage);
  REQUIRE(client.create(kObject, 4 * kPage, 8, 2) == CUDA_SUCCESS);
  CHECK(client.bind(kObject, 0, kMemory, 0, kPage) ==
        CUDA_ERROR_INVALID_DEVICE);  // the driver's own error: no device added
  REQUIRE(client.add(kObject, 0) == CUDA_SUCCESS);
  REQUIRE(client.bind(kObject, kPage, kMemory, 2 * kPage, 2 * kPage) == CUDA_SUCCESS);
  REQUIRE(client.ask("cuMemMap", bytes_of(client.address(8 * kPage), 2 * kPage, 2 * kPage, kMemory,
                                          uint64_t{0})) == CUDA_SUCCESS);
  REQUIRE(client.bind_at(kObject, 0, client.address(9 * kPage), kPage) == CUDA_SUCCESS);
  CHECK(client.bound() == 2);
  CHECK(client.unbind(kObject, 0, kPage, 2 * kPage) == CUDA_SUCCESS);
  CHECK(client.bound() == 1);
  CHECK(client.ask("cuMemUnmap", bytes_of(client.address(8 * kPage), 2 * kPage)) == CUDA_SUCCESS);
  // Bound memory, and its charge, stays until the multicast object is released.
  const uint64_t used = client.fake.used();
  CHECK(client.release(kMemory) == CUDA_SUCCESS);
  CHECK(client.fake.used() == used);
  CHECK(client.release(kObject) == CUDA_SUCCESS);
  CHECK(client.fake.used() == used - 4 * kPage);
}

TEST_CASE("rejects unknown or foreign memory for multicast objects") {
  Session client;
  client.make_memory(2);
  for (const uint64_t size : {uint64_t{0}}) CHECK(client.create(kObject, size) == CUDA_ERROR_INVALID_VALUE);
  CHECK(client.create(kObject, kPage, 2) == CUDA_ERROR_INVALID_VALUE);  // a Windows handle
  CHECK(client.create(kObject, kPage, 0, 0) == CUDA_ERROR_INVALID_VALUE);
  REQUIRE(client.create(kObject, 2 * kPage) == CUDA_SUCCESS);
  REQUIRE(client.create(kSecond, 2 * kPage) == CUDA_SUCCESS);
  for (const int device : {-1, 1, 1 << 30}) CHECK(client.add(kObject, device) == CUDA_ERROR_INVALID_DEVICE);
  for (const uint64_t wild : {kGone, uint64_t{0}, uint64_t{1}, ~uint64_t{0}}) {
    CHECK(client.add(wild, 0) != CUDA_SUCCESS);
    CHECK(client.bind(wild, 0, kMemory, 0, kPage) != CUDA_SUCCESS);
    CHECK(client.bind(kObject, 0, wild, 0, kPage) != CUDA_SUCCESS);
    CHECK(client.bind_at(wild, 0, client.address(0), kPage) != CUDA_SUCCESS);
    CHECK(client.unbind(wild, 0, 0, kPage) != CUDA_SUCCESS);
  }
  REQUIRE(client.add(kObject, 0) == CUDA_SUCCESS);
  CHECK(client.add(kMemory, 0) == CUDA_ERROR_INVALID_VALUE);  // memory, not a multicast object
  CHECK(client.bind(kMemory, 0, kMemory, 0, kPage) == CUDA_ERROR_INVALID_VALUE);
  CHECK(client.bind(kObject, 0, kSecond, 0, kPage) ==
        CUDA_ERROR_INVALID_VALUE);  // not memory but a multicast object
  CHECK(client.bind(kObject, 0, kMemory, 0, kPage, 1) == CUDA_ERROR_INVALID_VALUE);
  for (const uint64_t offset : {kPage, 2 * kPage, kFar, ~uint64_t{0}}) {
    CHECK(client.bind(kObject, offset, kMemory, 0, 2 * kPage) == CUDA_ERROR_INVALID_VALUE);
    CHECK(client.bind(kObject, 0, kMemory, offset, 2 * kPage) == CUDA_ERROR_INVALID_VALUE);
  }
  for (const uint64_t size : {uint64_t{0}, 3 * kPage, ~uint64_t{0}})
    CHECK(client.bind(kObject, 0, kMemory, 0, size) == CUDA_ERROR_INVALID_VALUE);
  REQUIRE(client.ask("cuMemMap", bytes_of(client.address(8 * kPage), 2 * kPage, uint64_t{0}, kMemory,
                                          uint64_t{0})) == CUDA_SUCCESS);
  // Addresses of movable memory, of unmapped memory, beyond a mapping's end, and of the worker's own memory.
  for (const uint64_t place :
       {client.address(0), client.address(7 * kPage), client.address(9 * kPage), client.address(10 * kPage),
        uint64_t{0}, uint64_t{0x1000}, reinterpret_cast<uint64_t>(&client), ~uint64_t{0}}) {
    CHECK(client.bind_at(kObject, 0, place, 2 * kPage) == CUDA_ERROR_INVALID_VALUE);
  }
  REQUIRE(client.bind(kObject, 0, kMemory, 0, kPage) == CUDA_SUCCESS);
  CHECK(client.unbind(kObject, 0, 0, 2 * kPage) == CUDA_ERROR_INVALID_VALUE);
  CHECK(client.unbind(kObject, 0, kPage, kPage) == CUDA_ERROR_INVALID_VALUE);
  CHECK(client.unbind(kObject, 1, 0, kPage) == CUDA_ERROR_INVALID_DEVICE);
  CHECK(client.unbind(kSecond, 0, 0, kPage) == CUDA_ERROR_INVALID_VALUE);
  CHECK(client.unbind(kObject, 0, 0, kPage) == CUDA_SUCCESS);
  CHECK(client.unbind(kObject, 0, 0, kPage) == CUDA_ERROR_INVALID_VALUE);
  // The number of multicast objects per session is limited.
  uint64_t made = 2;
  while (client.create(make_handle(Kind::memory, 1, static_cast<uint32_t>(1000 + made)), kPage) ==
         CUDA_SUCCESS)
    ++made;
  CHECK(made == worker::VirtualMemory::kMaxMulticasts);
}

TEST_CASE("confines the decompression engine to the session's memory") {
  Session client;
  const auto decompress = [&](auto... operations) {
    return client.ask("cuMemBatchDecompressAsync",
                      bytes_of(kThere, uint64_t{sizeof...(operations)}, operations...,
                               uint64_t{sizeof...(operations)}, uint32_t{0}, uint8_t{0}, stream_handle(0)));
  };
  const uint64_t here = client.address(0), half = client.address(kPage / 2), end = client.address(kPage);
  const auto good = operation(here, 100, half, 1000, end - 4);
  REQUIRE(decompress(good) == CUDA_SUCCESS);
  REQUIRE(decompress(good, operation(here, 8, half, 0, here)) == CUDA_SUCCESS);
  CHECK(client.fake.locked([&] { return client.fake.decompressed.size(); }) == 3);
  for (const uint64_t place : {uint64_t{0}, end, here - 1, client.fake.range_base + client.fake.range_size,
                               reinterpret_cast<uint64_t>(&client), ~uint64_t{0}}) {
    CHECK(decompress(operation(place, 100, half, 100, here), good) == CUDA_ERROR_INVALID_VALUE);
    CHECK(decompress(operation(here, 100, place, 100, here), good) == CUDA_ERROR_INVALID_VALUE);
    CHECK(decompress(operation(here, 100, place, 0, here)) == CUDA_ERROR_INVALID_VALUE);
    CHECK(decompress(operation(here, 100, half, 100, place)) == CUDA_ERROR_INVALID_VALUE);
  }
  CHECK(decompress(operation(here, kPage + 1, half, 1, here)) == CUDA_ERROR_INVALID_VALUE);
  CHECK(decompress(operation(here, ~uint64_t{0}, half, 1, here)) == CUDA_ERROR_INVALID_VALUE);
  CHECK(decompress(operation(here, 1, half, kPage, here)) == CUDA_ERROR_INVALID_VALUE);
  CHECK(decompress(operation(here, 1, half, 1, end - 3)) == CUDA_ERROR_INVALID_VALUE);
  CHECK(client.ask("cuMemBatchDecompressAsync", bytes_of(uint8_t{0}, uint64_t{0}, uint64_t{1}, uint32_t{0},
                                                         uint8_t{0}, stream_handle(0))) ==
        CUDA_ERROR_INVALID_VALUE);
  CHECK(client.fake.locked([&] { return client.fake.decompressed.size(); }) == 3);
}
#else
TEST_CASE("headers before CUDA 12.8 lack these calls") {}
#endif
