// Tests cuCtxEnablePeerAccess: which devices can access the session's memory.
#include "protocol/wire/commands.h"
#include "tests/server/worker/test_client.h"
#include "tests/support/catch.h"

using namespace gpupool;
using namespace gpupool::worker::test;
using wire::Command;

namespace {

constexpr uint64_t kPage = FakeDriver::kGranularity;
constexpr uint64_t kPeer = cuda::make_handle(cuda::Kind::context, 1, 2);    // on device 1
constexpr uint64_t kSecond = cuda::make_handle(cuda::Kind::context, 1, 3);  // also on device 1

// A context on each of two devices, and a page on the first one.
struct TwoDevices {
  TwoDevices() {
    client.retain();
    client.send(Command::create_context, bytes_of(wire::CreateContext{kPeer, 1, 0}));
    client.map(0, kPage);
  }
  CUresult enable(uint64_t who, uint64_t whose = kContext) {
    return client.result(client.call("cuCtxEnablePeerAccess", bytes_of(whose, 0u), true, who));
  }
  CUresult disable(uint64_t who) {
    return client.result(client.call("cuCtxDisablePeerAccess", bytes_of(kContext), true, who));
  }
  bool settle() { return client.ask(Command::synchronize_context, {}) == CUDA_SUCCESS; }
  bool reaches(int device, uint64_t offset) {
    REQUIRE(settle());
    return client.fake.locked([&] {
      const auto& access = client.fake.mapped.at(client.address(offset)).access;
      return access.contains(device) && access.at(device) == CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
    });
  }

  TestClient client{false, nullptr, 0, false, nullptr, false, {}, [](FakeDriver& fake) { fake.devices = 2; }};
};

}  // namespace

TEST_CASE("a device can access a peer's memory while its context has enabled it") {
  TwoDevices two;
  CHECK(two.reaches(0, 0));
  CHECK_FALSE(two.reaches(1, 0));
  REQUIRE(two.enable(kPeer) == CUDA_SUCCESS);
  CHECK(two.reaches(1, 0));
  two.client.map(kPage, kPage);
  CHECK(two.reaches(1, kPage));
  CHECK(two.enable(kPeer) == CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED);
  CHECK(two.reaches(1, 0));

  REQUIRE(two.disable(kPeer) == CUDA_SUCCESS);
  CHECK_FALSE(two.reaches(1, 0));
  CHECK_FALSE(two.reaches(1, kPage));
  CHECK(two.reaches(0, 0));
  two.client.map(2 * kPage, kPage);
  CHECK_FALSE(two.reaches(1, 2 * kPage));
}

TEST_CASE("peer access lasts while any context of the device has it") {
  TwoDevices two;
  two.client.send(Command::create_context, bytes_of(wire::CreateContext{kSecond, 1, 0}));
  REQUIRE(two.enable(kPeer) == CUDA_SUCCESS);
  REQUIRE(two.enable(kSecond) == CUDA_SUCCESS);
  REQUIRE(two.disable(kPeer) == CUDA_SUCCESS);
  CHECK(two.reaches(1, 0));
  REQUIRE(two.client.ask(Command::destroy_context, bytes_of(wire::DestroyContext{kSecond})) == CUDA_SUCCESS);
  CHECK_FALSE(two.reaches(1, 0));
  two.client.map(kPage, kPage);
  CHECK_FALSE(two.reaches(1, kPage));
}

TEST_CASE("devices access pool memory according to the pool and not to the contexts") {
  TwoDevices two;
  two.client.send(Command::map_memory,
                  bytes_of(wire::MapMemory{two.client.address(kPage), kPage, 0, 1u << 1}));
  CHECK(two.reaches(1, kPage));
  CHECK_FALSE(two.reaches(1, 0));
  REQUIRE(two.enable(kPeer) == CUDA_SUCCESS);
  REQUIRE(two.disable(kPeer) == CUDA_SUCCESS);
  CHECK(two.reaches(1, kPage));
  CHECK_FALSE(two.reaches(1, 0));
  const auto set_access = [&](CUmemAccess_flags flags) {
    const CUmemAccessDesc access{{CU_MEM_LOCATION_TYPE_DEVICE, 1}, flags};
    return two.client.ask("cuMemSetAccess", bytes_of(two.client.address(0), uint64_t{kPage}, uint8_t{1},
                                                     uint64_t{1}, access, uint64_t{1}));
  };
  REQUIRE(set_access(CU_MEM_ACCESS_FLAGS_PROT_READWRITE) == CUDA_SUCCESS);
  REQUIRE(two.enable(kPeer) == CUDA_SUCCESS);
  REQUIRE(two.disable(kPeer) == CUDA_SUCCESS);
  CHECK(two.reaches(1, 0));
  REQUIRE(set_access(CU_MEM_ACCESS_FLAGS_PROT_NONE) == CUDA_SUCCESS);
  CHECK_FALSE(two.reaches(1, 0));
}

TEST_CASE("peer access needs two contexts of the session") {
  TwoDevices two;
  CHECK(two.enable(kPeer, cuda::make_handle(cuda::Kind::context, 1, 9)) == CUDA_ERROR_INVALID_CONTEXT);
  CHECK(two.enable(kPeer, 0) == CUDA_ERROR_INVALID_CONTEXT);
}
