// Tests clients that lie about arrays, textures, copies, graph bodies and resources: the driver never gets an
// object or memory that does not exist.
#include <bit>
#include <cstring>

#include "protocol/images/fatbin.h"
#include "protocol/wire/commands.h"
#include "protocol/wire/graphs.h"
#include "protocol/wire/images.h"
#include "tests/server/worker/test_client.h"
#include "tests/support/catch.h"

using namespace gpupool;
using namespace gpupool::worker::test;
using cuda::Kind;
using cuda::make_handle;
using wire::Command;

namespace {

constexpr uint64_t kPage = FakeDriver::kGranularity;
constexpr uint64_t kArray = make_handle(Kind::array, 1, 300), kSecond = make_handle(Kind::array, 1, 301),
                   kLevel = make_handle(Kind::array, 1, 302);
constexpr uint64_t kMipmapped = make_handle(Kind::mipmapped_array, 1, 303);
constexpr uint64_t kModule = make_handle(Kind::module, 1, 304), kUpload = make_handle(Kind::upload, 1, 305);
constexpr uint64_t kReference = make_handle(Kind::texture_reference, 1, 307),
                   kOfModule = make_handle(Kind::texture_reference, 1, 308);
constexpr uint64_t kGone = make_handle(Kind::array, 1, 399);
constexpr uint64_t kWild[] = {0, 1, 0xdeadbeef, 1ull << 63, ~0ull, 0x00007fffdeadbee0};
constexpr uint8_t kThere = 1;

class Session : public TestClient {
 public:
  Session() {
    retain();
    map(0, kPage);
    create_stream(0);
  }
  ~Session() {
    if (!over_) finish();
    CHECK(fake.misused == 0);
    CHECK(fake.arrays.empty());
    CHECK(fake.textures.empty());
    CHECK(fake.graphs.empty());
    CHECK(fake.executables.empty());
    CHECK(fake.physical.empty());
  }
  // True if the session has ended because of a malformed command.
  bool ends() {
    over_ = true;
    return finish() == 1 && !end_reason.empty();
  }
  CUresult create(uint64_t handle, CUDA_ARRAY3D_DESCRIPTOR shape) {
    return ask("cuArray3DCreate_v2", bytes_of(handle, kThere, shape));
  }
  CUresult create_levels(uint64_t handle, unsigned levels) {
    return ask("cuMipmappedArrayCreate", bytes_of(handle, kThere, kShape, levels));
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
  uint64_t end() const { return fake.range_base + fake.range_size; }
  // Loads a module, as a program does.
  void load() {
    const std::string ptx =
        ".version 7.0\n.target sm_50\n.address_size 64\n.visible .entry kernel()\n{\nret;\n}\n";
    cuda::ImageSpans spans;
    spans.image = std::as_bytes(std::span(ptx.c_str(), ptx.size() + 1));
    cuda::Bytes image;
    REQUIRE(cuda::bundle(spans, image) == CUDA_SUCCESS);
    auto upload = bytes_of(wire::UploadPart{kUpload, image.view().size()});
    upload.insert(upload.end(), image.view().begin(), image.view().end());
    send(Command::upload_part, upload);
    REQUIRE(ask(Command::load_module, bytes_of(wire::LoadImage{kModule, kUpload})) == CUDA_SUCCESS);
  }

  static constexpr CUDA_ARRAY3D_DESCRIPTOR kShape{64, 32, 0, CU_AD_FORMAT_FLOAT, 4, 0};

 private:
  bool over_ = false;
};

wire::Buffer named(const auto& fixed, const std::string& name) {
  auto body = bytes_of(fixed);
  wire::Writer(body).put_text(name);
  return body;
}

template <class Object>
Object object(uint64_t bits) {
  return std::bit_cast<Object>(bits);
}

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

TEST_CASE("ends the session when a part takes its owner's handle index") {
  Session client;
  client.load();
  SECTION("a level") {
    REQUIRE(client.create_levels(kMipmapped, 3) == CUDA_SUCCESS);
    client.send(Command::array_part,
                bytes_of(wire::ArrayPart{make_handle(Kind::array, 1, 303), kMipmapped, 1, 0}));
  }
  SECTION("a function") {
    client.send(Command::get_function,
                named(wire::GetFunction{make_handle(Kind::function, 1, 304), kModule}, "kernel"));
  }
  SECTION("a reference") {
    client.send(Command::get_reference,
                named(wire::GetReference{make_handle(Kind::texture_reference, 1, 304), kModule}, "texture"));
  }
  CHECK(client.ends());
  CHECK(client.end_reason.find("invalid new handle") != std::string::npos);
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

TEST_CASE("rejects stream attributes that contain foreign handles or addresses") {
  Session client;
  CUstreamAttrValue value{};
  const auto set = [&](unsigned id) {
    return client.ask("cuStreamSetAttribute", bytes_of(stream_handle(0), id, kThere, value));
  };
  std::memset(&value, 0xee, sizeof value);
  for (const unsigned id : {0u, 2u, 4u, 7u, 12u, 13u, 31u, 32u, 33u, 1u << 31, ~0u})
    CHECK(set(id) == CUDA_ERROR_INVALID_VALUE);
  CHECK(set(1) == CUDA_ERROR_INVALID_VALUE);
  value = {};
  value.accessPolicyWindow.base_ptr = object<void*>(client.end() - kPage);
  value.accessPolicyWindow.num_bytes = kPage;
  CHECK(set(1) == CUDA_SUCCESS);
  value.accessPolicyWindow.num_bytes = kPage + 1;
  CHECK(set(1) == CUDA_ERROR_INVALID_VALUE);
  CHECK(client.ask("cuStreamSetAttribute", bytes_of(stream_handle(0), 3u, uint8_t{0})) ==
        CUDA_ERROR_INVALID_VALUE);
}

#if CUDA_VERSION >= 12000
TEST_CASE("rejects tensor maps whose arrays do not match their rank") {
  Session client;
  const auto encode = [&](uint32_t rank, auto... arrays) {
    return client.ask("cuTensorMapEncodeTiled",
                      bytes_of(kThere, 7u, rank, uint64_t{0xdead0000}, arrays..., 0u, 0u, 0u, 0u));
  };
  const uint64_t one = 1, two = 2, none = 0;
  CHECK(encode(2, kThere, two, one, one, kThere, one, one, kThere, two, 1u, 1u, kThere, two, 1u, 1u) ==
        CUDA_SUCCESS);
  CHECK(encode(3, kThere, two, one, one, kThere, one, one, kThere, two, 1u, 1u, kThere, two, 1u, 1u) ==
        CUDA_ERROR_INVALID_VALUE);
  CHECK(encode(~0u, kThere, two, one, one, kThere, one, one, kThere, two, 1u, 1u, kThere, two, 1u, 1u) ==
        CUDA_ERROR_INVALID_VALUE);
  CHECK(encode(0, kThere, none, kThere, none, kThere, none, kThere, none) == CUDA_ERROR_INVALID_VALUE);
  const uint8_t no = 0;
  CHECK(encode(5, no, none, no, none, no, none, no, none) == CUDA_ERROR_INVALID_VALUE);
  CHECK(encode(2, kThere, two, one, one, no, none, kThere, two, 1u, 1u, kThere, two, 1u, 1u) ==
        CUDA_ERROR_INVALID_VALUE);
}
#endif

#if CUDA_VERSION >= 12040
TEST_CASE("accepts only device resources that the session has queried") {
  Session client;
  const auto device = [&](int ordinal, uint32_t type) {
    return client.ask(Command::device_resource, bytes_of(wire::DeviceResource{0, ordinal, type}));
  };
  REQUIRE(device(0, 1) == CUDA_SUCCESS);
  for (const int ordinal : {-1, 1, 1 << 30}) CHECK(device(ordinal, 1) == CUDA_ERROR_INVALID_DEVICE);
  for (const uint32_t type : {0u, 2u, ~0u}) CHECK(device(0, type) == CUDA_ERROR_INVALID_RESOURCE_TYPE);
  const uint64_t description = make_handle(Kind::resource_description, 1, 500);
  for (const uint64_t number : {uint64_t{0}, uint64_t{2}, uint64_t{1} << 40, ~uint64_t{0}}) {
    CHECK(client.ask(Command::split_resource, bytes_of(wire::SplitResource{number, 2, 0, 1, 0})) ==
          CUDA_ERROR_INVALID_VALUE);
    CHECK(client.ask(Command::describe_resources, bytes_of(wire::DescribeResources{description, 1, 0},
                                                           number)) == CUDA_ERROR_INVALID_VALUE);
  }
  CHECK(client.ask(Command::split_resource, bytes_of(wire::SplitResource{1, 2, 0, ~0u, 0})) == CUDA_SUCCESS);
  CHECK(client.ask(Command::create_context,
                   bytes_of(wire::CreateContext{make_handle(Kind::context, 1, 9), 0, wire::kGreenContext},
                            description)) != CUDA_SUCCESS);
  CHECK(client.ask(Command::create_context,
                   bytes_of(wire::CreateContext{make_handle(Kind::context, 1, 9), 0, wire::kGreenContext},
                            stream_handle(0))) != CUDA_SUCCESS);
  wire::Buffer body;
  SECTION("too many parts") {
    body = bytes_of(wire::SplitResource{1, wire::kMaxResourceGroups + 1, 0, 1, 0});
  }
  if (!body.empty()) client.send(Command::split_resource, body);
  SECTION("none to describe") {
    client.send(Command::describe_resources, bytes_of(wire::DescribeResources{description, 0, 0}));
  }
  SECTION("more than come") {
    client.send(Command::describe_resources,
                bytes_of(wire::DescribeResources{description, 3, 0}, uint64_t{1}));
  }
  SECTION("countless") {
    client.send(Command::describe_resources,
                bytes_of(wire::DescribeResources{description, ~0u, 0}, uint64_t{1}));
  }
  SECTION("a handle of another kind") {
    client.send(Command::describe_resources, bytes_of(wire::DescribeResources{kArray, 1, 0}, uint64_t{1}));
  }
  CHECK(client.ends());
}
#endif

#if CUDA_VERSION >= 12030
TEST_CASE("accepts bodies of conditional nodes only within their graph") {
  constexpr uint64_t kGraph = make_handle(Kind::graph, 1, 400),
                     kExecutable = make_handle(Kind::graph_exec, 1, 401);
  constexpr uint64_t kBody = make_handle(Kind::graph, 1, 402), kOther = make_handle(Kind::graph, 1, 403);
  Session client;
  using wire::GraphNodeKind;
  const auto condition = [&](uint64_t handle) {
    client.send(Command::graph_nodes, bytes_of(wire::GraphNodes{kGraph, 1, 0},
                                               wire::GraphNode{GraphNodeKind::condition, 0,
                                                               sizeof(wire::GraphCondition), 0, kContext},
                                               wire::GraphCondition{handle, 0, 0}));
  };
  const auto conditional = [&](uint64_t graph, uint64_t handle, uint32_t type, uint32_t count,
                               auto... bodies) {
    client.send(Command::graph_nodes,
                bytes_of(wire::GraphNodes{graph, 1, 0},
                         wire::GraphNode{
                             GraphNodeKind::conditional, 0,
                             static_cast<uint32_t>(sizeof(wire::GraphConditional) + 8 * sizeof...(bodies)), 0,
                             kContext},
                         wire::GraphConditional{handle, type, count}, bodies...));
  };
  const auto empty = [&](uint64_t graph, GraphNodeKind kind = GraphNodeKind::empty) {
    if (kind == GraphNodeKind::host) {
      client.send(Command::graph_nodes,
                  bytes_of(wire::GraphNodes{graph, 1, 0}, wire::GraphNode{kind, 0, 8, 0, kContext},
                           wire::GraphHost{5}));
    } else {
      client.send(Command::graph_nodes,
                  bytes_of(wire::GraphNodes{graph, 1, 0}, wire::GraphNode{kind, 0, 0, 0, 0}));
    }
  };
  const auto instantiate = [&](uint64_t graph) {
    return client.ask(Command::instantiate_graph, bytes_of(wire::InstantiateGraph{graph, kExecutable, 0}));
  };
  const auto launch = [&] {
    return client.ask(Command::launch_graph, bytes_of(wire::LaunchGraph{kExecutable, stream_handle(0)}));
  };
  condition(77);
  bool ends = true;
  SECTION("as it should be; a body is nothing by itself") {
    conditional(kGraph, 77, 0, 1, kBody);
    empty(kBody);
    CHECK(instantiate(kBody) == CUDA_ERROR_INVALID_HANDLE);
    CHECK(client.ask(Command::destroy_graph, bytes_of(wire::DestroyGraph{kBody})) ==
          CUDA_ERROR_INVALID_HANDLE);
    CHECK(client.ask(Command::update_graph, bytes_of(wire::UpdateGraph{kExecutable, kBody})) ==
          CUDA_ERROR_INVALID_HANDLE);
    CHECK(instantiate(kGraph) == CUDA_SUCCESS);
    CHECK(launch() == CUDA_SUCCESS);
    CHECK(client.ask(Command::destroy_graph, bytes_of(wire::DestroyGraph{kBody})) ==
          CUDA_ERROR_INVALID_HANDLE);
    empty(kBody);  // now an independent graph
    CHECK(client.ask(Command::destroy_graph, bytes_of(wire::DestroyGraph{kExecutable})) == CUDA_SUCCESS);
    CHECK(client.ask(Command::destroy_graph, bytes_of(wire::DestroyGraph{kExecutable})) ==
          CUDA_ERROR_INVALID_HANDLE);
    CHECK(launch() == CUDA_ERROR_INVALID_HANDLE);
    ends = false;
  }
  SECTION("no such condition") {
    conditional(kGraph, 78, 0, 1, kBody);
    empty(kBody);
    CHECK(instantiate(kGraph) == CUDA_ERROR_INVALID_VALUE);
    ends = false;
  }
  SECTION("a condition twice") {
    condition(77);
    CHECK(instantiate(kGraph) == CUDA_ERROR_INVALID_HANDLE);
    ends = false;
  }
  SECTION("a body that is a graph already") {
    empty(kOther);
    conditional(kGraph, 77, 0, 1, kOther);
  }
  SECTION("its own graph as its body") {
    conditional(kGraph, 77, 0, 1, kGraph);
  }
  SECTION("the same body twice") {
    conditional(kGraph, 77, 2, 2, kBody, kBody);
  }
  SECTION("the body of another node") {
    conditional(kGraph, 77, 0, 1, kBody);
    conditional(kGraph, 77, 0, 1, kBody);
  }
  SECTION("no bodies") {
    conditional(kGraph, 77, 0, 0);
  }
  SECTION("fewer bodies than it says") {
    conditional(kGraph, 77, 2, 3, kBody);
  }
  SECTION("countless bodies") {
    conditional(kGraph, 77, 2, ~0u, kBody);
  }
  SECTION("an unknown type") {
    conditional(kGraph, 77, 3, 1, kBody);
  }
  SECTION("a node of the program's in a body") {
    conditional(kGraph, 77, 0, 1, kBody);
    empty(kBody, GraphNodeKind::host);
  }
  if (ends) CHECK(client.ends());
}
#endif
