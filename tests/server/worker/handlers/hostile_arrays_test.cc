// Tests clients that lie about arrays, textures and surfaces: the driver never gets an array or memory that
// does not exist.
#include <cstdint>
#include <ios>

#include "protocol/wire/commands.h"
#include "protocol/wire/graphs.h"
#include "protocol/wire/images.h"
#include "tests/server/worker/handlers/hostile_session.h"
#include "tests/support/catch.h"

using namespace gpupool;
using namespace gpupool::worker::test;

namespace {

constexpr uint64_t kSecond = make_handle(Kind::array, 1, 301), kLevel = make_handle(Kind::array, 1, 302);
constexpr uint64_t kReference = make_handle(Kind::texture_reference, 1, 307),
                   kOfModule = make_handle(Kind::texture_reference, 1, 308);
constexpr uint64_t kGone = make_handle(Kind::array, 1, 399);
constexpr uint64_t kWild[] = {0, 1, 0xdeadbeef, 1ull << 63, ~0ull, 0x00007fffdeadbee0};

class Session : public HostileSession {
 public:
  CUresult create(uint64_t handle, CUDA_ARRAY3D_DESCRIPTOR shape) {
    return ask("cuArray3DCreate_v2", bytes_of(handle, kThere, shape));
  }
  CUresult copy(const CUDA_MEMCPY3D& copy) {
    return ask("cuMemcpy3DAsync_v2", bytes_of(kThere, copy, stream_handle(0)));
  }
  CUresult part(uint64_t handle, uint64_t whole, uint32_t number) {
    return ask(Command::array_part, bytes_of(wire::ArrayPart{handle, whole, number, 0}));
  }
  CUresult destroy(uint64_t handle) {
    return ask(Command::destroy_array, bytes_of(wire::DestroyArray{handle}));
  }
  CUresult texture(const CUDA_RESOURCE_DESC& resource) {
    return ask("cuTexObjectCreate",
               bytes_of(kThere, kThere, resource, kThere, CUDA_TEXTURE_DESC{}, uint8_t{0}));
  }
  CUresult surface(const CUDA_RESOURCE_DESC& resource) {
    return ask("cuSurfObjectCreate", bytes_of(kThere, kThere, resource));
  }
};

CUDA_MEMCPY3D between(uint64_t array, uint64_t device) {
  CUDA_MEMCPY3D copy{};
  copy.srcMemoryType = CU_MEMORYTYPE_ARRAY;
  copy.srcArray = object<CUarray>(array);
  copy.dstMemoryType = CU_MEMORYTYPE_DEVICE;
  copy.dstDevice = device;
  copy.dstPitch = 1024;
  copy.dstHeight = 32;
  copy.WidthInBytes = 1024;
  copy.Height = 32;
  copy.Depth = 1;
  return copy;
}

}  // namespace

TEST_CASE("rejects arrays of invalid shapes without charging the quota") {
  Session client;
  constexpr size_t kSizes[] = {1, 1u << 28, size_t{1} << 32, size_t{1} << 62, ~size_t{0}};
  for (const size_t width : kSizes) {
    for (const size_t height : kSizes) {
      for (const size_t depth : kSizes) {
        if (width * height * depth == 1) continue;
        for (const unsigned flags : {0u, unsigned{CUDA_ARRAY3D_LAYERED}}) {
          const CUDA_ARRAY3D_DESCRIPTOR shape{width, height, depth, CU_AD_FORMAT_FLOAT, 4, flags};
          CHECK(client.create(kArray, shape) != CUDA_SUCCESS);
          CHECK(client.ask("cuMipmappedArrayCreate", bytes_of(kMipmapped, kThere, shape, ~0u)) !=
                CUDA_SUCCESS);
        }
      }
    }
  }
  for (const int format : {0, 0x77, 0x91, 0xb0, -1}) {
    CHECK(client.create(kArray, {64, 1, 1, static_cast<CUarray_format>(format), 4, 0}) != CUDA_SUCCESS);
  }
  for (const unsigned channels : {0u, 3u, 5u, 1u << 30, ~0u})
    CHECK(client.create(kArray, {64, 1, 1, CU_AD_FORMAT_FLOAT, channels, 0}) != CUDA_SUCCESS);
  CHECK(client.create(kArray, {64, 1, 1, CU_AD_FORMAT_FLOAT, 4, ~0u}) != CUDA_SUCCESS);
  CHECK(client.create(kArray, {0, 1, 1, CU_AD_FORMAT_FLOAT, 4, 0}) != CUDA_SUCCESS);
  CHECK(client.ask("cuArray3DCreate_v2", bytes_of(kArray, uint8_t{0})) == CUDA_ERROR_INVALID_VALUE);
  CHECK(client.create_levels(kMipmapped, ~0u) == CUDA_SUCCESS);  // limited to the maximum
  CHECK(client.part(kLevel, kMipmapped, 6) == CUDA_SUCCESS);
  CHECK(client.part(kSecond, kMipmapped, 7) == CUDA_ERROR_INVALID_VALUE);
}

TEST_CASE("passes only existing arrays to the driver") {
  Session client;
  REQUIRE(client.create(kArray, Session::kShape) == CUDA_SUCCESS);
  REQUIRE(client.create_levels(kMipmapped, 3) == CUDA_SUCCESS);
  const uint64_t here = client.address(0);
  CHECK(client.copy(between(kArray, here)) == CUDA_SUCCESS);
  const auto refused = [&](uint64_t handle) {
    INFO("handle " << std::hex << handle);
    CHECK(client.copy(between(handle, here)) == CUDA_ERROR_INVALID_HANDLE);
    CUDA_MEMCPY3D down = between(kArray, here);
    down.dstMemoryType = CU_MEMORYTYPE_ARRAY;
    down.dstArray = object<CUarray>(handle);
    CHECK(client.copy(down) == CUDA_ERROR_INVALID_HANDLE);
    CHECK(client.destroy(handle) == CUDA_ERROR_INVALID_HANDLE);
    CHECK(client.part(kLevel, handle, 0) != CUDA_SUCCESS);
    CHECK(client.ask("cuArrayGetSparseProperties", bytes_of(kThere, handle)) == CUDA_ERROR_INVALID_HANDLE);
    CUDA_RESOURCE_DESC resource{};
    resource.resType = CU_RESOURCE_TYPE_ARRAY;
    resource.res.array.hArray = object<CUarray>(handle);
    CHECK(client.texture(resource) == CUDA_ERROR_INVALID_HANDLE);
    CHECK(client.surface(resource) == CUDA_ERROR_INVALID_HANDLE);
  };
  for (const uint64_t handle : kWild) refused(handle);
  refused(kGone);
  refused(stream_handle(0));
  refused(kContext);
  refused(make_handle(Kind::array, 2, 300));
  // Arrays and mipmapped arrays cannot replace each other.
  CHECK(client.copy(between(kMipmapped, here)) == CUDA_ERROR_INVALID_HANDLE);
  CUDA_RESOURCE_DESC resource{};
  resource.resType = CU_RESOURCE_TYPE_MIPMAPPED_ARRAY;
  resource.res.mipmap.hMipmappedArray = object<CUmipmappedArray>(kArray);
  CHECK(client.texture(resource) == CUDA_ERROR_INVALID_HANDLE);
  // Parts of arrays: out of range, not to be destroyed separately, destroyed with the whole.
  for (const uint32_t number : {3u, 1u << 31, ~0u})
    CHECK(client.part(kLevel, kMipmapped, number) == CUDA_ERROR_INVALID_VALUE);
  for (const uint32_t number : {0u, 1u, ~0u})
    CHECK(client.part(kLevel, kArray, number) == CUDA_ERROR_INVALID_VALUE);
  REQUIRE(client.part(kLevel, kMipmapped, 1) == CUDA_SUCCESS);
  CHECK(client.copy(between(kLevel, here)) == CUDA_SUCCESS);
  CHECK(client.destroy(kLevel) == CUDA_ERROR_INVALID_HANDLE);
  CHECK(client.destroy(kMipmapped) == CUDA_SUCCESS);
  refused(kLevel);
  refused(kMipmapped);
  CHECK(client.destroy(kArray) == CUDA_SUCCESS);
  refused(kArray);
}

TEST_CASE("confines array copies to the session's memory") {
  Session client;
  REQUIRE(client.create(kArray, Session::kShape) == CUDA_SUCCESS);
  const uint64_t here = client.address(0);
  const auto refused = [&](auto&& change) {
    CUDA_MEMCPY3D copy = between(kArray, here);
    change(copy);
    CHECK(client.copy(copy) != CUDA_SUCCESS);
    const uint64_t graph = make_handle(Kind::graph, 1, 400);
    client.send(Command::graph_nodes,
                bytes_of(wire::GraphNodes{graph, 1, 0},
                         wire::GraphNode{wire::GraphNodeKind::copy, 0, sizeof copy, 0, kContext}, copy));
    CHECK(client.ask(Command::instantiate_graph,
                     bytes_of(wire::InstantiateGraph{graph, make_handle(Kind::graph_exec, 1, 401), 0})) !=
          CUDA_SUCCESS);
  };
  for (const uint64_t huge : {uint64_t{1} << 31, uint64_t{1} << 32, uint64_t{1} << 62, uint64_t{1} << 63,
                              ~uint64_t{0}, ~uint64_t{0} - 1023}) {
    refused([&](auto& c) { c.dstPitch = huge; });
    refused([&](auto& c) { c.dstHeight = huge, c.Depth = 65; });
    refused([&](auto& c) { c.dstY = huge; });
    refused([&](auto& c) { c.dstZ = huge; });
    refused([&](auto& c) { c.dstXInBytes = huge; });
    refused([&](auto& c) { c.WidthInBytes = huge; });
    refused([&](auto& c) { c.Height = huge; });
    refused([&](auto& c) { c.Depth = huge; });
    refused([&](auto& c) { c.dstDevice += huge; });
  }
  for (const uint64_t wild : kWild) refused([&](auto& c) { c.dstDevice = wild; });
  refused([&](auto& c) { c.dstDevice = client.end() - 1024; });
  refused([&](auto& c) { c.srcLOD = 1; });
  refused([&](auto& c) { c.dstMemoryType = CU_MEMORYTYPE_HOST, c.dstHost = &c; });
  refused([&](auto& c) { c.srcMemoryType = CU_MEMORYTYPE_HOST, c.srcHost = &c; });
  refused([&](auto& c) { c.dstMemoryType = static_cast<CUmemorytype>(77); });
  // Fields that do not apply to this kind of end are not passed on.
  CUDA_MEMCPY3D copy = between(kArray, here);
  copy.srcHost = &copy;
  copy.dstHost = &copy;
  copy.reserved0 = copy.reserved1 = &copy;
  copy.srcDevice = 0xdeadbeef;
  copy.dstArray = object<CUarray>(uint64_t{0xdeadbeef});
  CHECK(client.copy(copy) == CUDA_SUCCESS);
}

TEST_CASE("confines textures and surfaces to the session's memory") {
  Session client;
  REQUIRE(client.create(kArray, Session::kShape) == CUDA_SUCCESS);
  const uint64_t here = client.address(0);
  CUDA_RESOURCE_DESC resource{};
  for (const int type : {-1, 4, 77}) {
    resource.resType = static_cast<CUresourcetype>(type);
    CHECK(client.texture(resource) == CUDA_ERROR_INVALID_VALUE);
    CHECK(client.surface(resource) == CUDA_ERROR_INVALID_VALUE);
  }
  resource.resType = CU_RESOURCE_TYPE_LINEAR;
  const auto linear = [&](uint64_t address, uint64_t bytes) {
    resource.res.linear = {address, CU_AD_FORMAT_FLOAT, 1, bytes};
    CHECK(client.surface(resource) == CUDA_ERROR_INVALID_VALUE);
    return client.texture(resource);
  };
  CHECK(linear(here, kPage) == CUDA_SUCCESS);
  CHECK(linear(client.end() - kPage, kPage + 1) == CUDA_ERROR_INVALID_VALUE);
  CHECK(linear(here + 1, ~uint64_t{0}) == CUDA_ERROR_INVALID_VALUE);
  for (const uint64_t wild : kWild) CHECK(linear(wild, 16) == CUDA_ERROR_INVALID_VALUE);
  resource.resType = CU_RESOURCE_TYPE_PITCH2D;
  const auto rows = [&](uint64_t width, uint64_t height, uint64_t pitch) {
    resource.res.pitch2D = {client.end() - kPage, CU_AD_FORMAT_FLOAT, 1, width, height, pitch};
    return client.texture(resource);
  };
  CHECK(rows(64, kPage / 256, 256) == CUDA_SUCCESS);
  CHECK(rows(64, kPage / 256 + 1, 256) == CUDA_ERROR_INVALID_VALUE);
  CHECK(rows(65, 2, 256) == CUDA_ERROR_INVALID_VALUE);
  CHECK(rows(~uint64_t{0} / 4 + 2, 1, 256) == CUDA_ERROR_INVALID_VALUE);
  CHECK(rows(64, 1ull << 56, 256) == CUDA_ERROR_INVALID_VALUE);
  CHECK(rows(64, 0, 256) == CUDA_ERROR_INVALID_VALUE);
  resource.resType = CU_RESOURCE_TYPE_ARRAY;
  resource.res.array.hArray = object<CUarray>(kArray);
  const Message made =
      client.reply(client.call("cuSurfObjectCreate", bytes_of(kThere, kThere, resource), true));
  const auto surface = made.as<uint64_t>();
  CHECK(client.ask("cuTexObjectDestroy", bytes_of(surface)) == CUDA_ERROR_INVALID_VALUE);  // not a texture
  CHECK(client.ask("cuSurfObjectDestroy", bytes_of(surface)) == CUDA_SUCCESS);
  CHECK(client.ask("cuSurfObjectDestroy", bytes_of(surface)) == CUDA_ERROR_INVALID_VALUE);
  for (const uint64_t wild : kWild) {
    CHECK(client.ask("cuTexObjectDestroy", bytes_of(wild)) == CUDA_ERROR_INVALID_VALUE);
    CHECK(client.ask("cuSurfObjectDestroy", bytes_of(wild)) == CUDA_ERROR_INVALID_VALUE);
  }
}

TEST_CASE("checks texture references and confines them to the session's memory") {
  Session client;
  client.load();
  REQUIRE(client.create(kArray, Session::kShape) == CUDA_SUCCESS);
  REQUIRE(client.ask("cuTexRefCreate", bytes_of(kReference)) == CUDA_SUCCESS);
  REQUIRE(client.ask(Command::get_reference, named(wire::GetReference{kOfModule, kModule}, "texture")) ==
          CUDA_SUCCESS);
  CHECK(client.ask("cuTexRefDestroy", bytes_of(kOfModule)) == CUDA_ERROR_INVALID_HANDLE);
  const uint64_t here = client.address(0);
  const auto address = [&](uint64_t reference, uint64_t at, uint64_t bytes) {
    return client.ask("cuTexRefSetAddress_v2", bytes_of(kThere, reference, at, bytes));
  };
  const auto rows = [&](uint64_t width, uint64_t height, uint64_t pitch) {
    return client.ask(
        "cuTexRefSetAddress2D_v3",
        bytes_of(kReference, kThere, CUDA_ARRAY_DESCRIPTOR{width, height, CU_AD_FORMAT_FLOAT, 1},
                 client.end() - kPage, pitch));
  };
  CHECK(address(kReference, here, kPage) == CUDA_SUCCESS);
  CHECK(address(kReference, client.end() - kPage, kPage + 1) == CUDA_ERROR_INVALID_VALUE);
  CHECK(address(kReference, here, ~uint64_t{0}) == CUDA_ERROR_INVALID_VALUE);
  CHECK(address(kReference, 0xdeadbeef, 16) == CUDA_ERROR_INVALID_VALUE);
  CHECK(rows(64, 256, 256) == CUDA_SUCCESS);
  CHECK(rows(65, 256, 256) == CUDA_ERROR_INVALID_VALUE);
  CHECK(rows(64, 257, 256) == CUDA_ERROR_INVALID_VALUE);
  CHECK(rows(uint64_t{1} << 62, 1, 256) == CUDA_ERROR_INVALID_VALUE);
  CHECK(rows(64, uint64_t{1} << 56, 256) == CUDA_ERROR_INVALID_VALUE);
  CHECK(client.ask("cuTexRefSetArray", bytes_of(kReference, kArray, 1u)) == CUDA_SUCCESS);
  CHECK(client.ask("cuTexRefSetArray", bytes_of(kReference, kGone, 1u)) == CUDA_ERROR_INVALID_HANDLE);
  CHECK(client.ask("cuTexRefSetArray", bytes_of(kArray, kArray, 1u)) == CUDA_ERROR_INVALID_HANDLE);
  CHECK(client.ask("cuTexRefSetArray", bytes_of(kReference, uint64_t{0}, 1u)) == CUDA_ERROR_INVALID_HANDLE);
  CHECK(client.ask(Command::set_border_color, bytes_of(wire::SetBorderColor{kArray, {}})) ==
        CUDA_ERROR_INVALID_HANDLE);
  CHECK(client.ask("cuModuleUnload", bytes_of(kModule)) == CUDA_SUCCESS);
  CHECK(address(kOfModule, here, 16) == CUDA_ERROR_INVALID_HANDLE);
  CHECK(client.ask("cuTexRefDestroy", bytes_of(kReference)) == CUDA_SUCCESS);
  CHECK(address(kReference, here, 16) == CUDA_ERROR_INVALID_HANDLE);
  CHECK(client.ask("cuTexRefDestroy", bytes_of(kReference)) == CUDA_ERROR_INVALID_HANDLE);
}
