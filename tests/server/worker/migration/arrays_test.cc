// Arrays, textures and surfaces of a session that one worker sends and another one adopts: contents, handles
// and numbers are the same, and a target that cannot give them refuses. On the fake driver.
#include "protocol/calls/array_bytes.h"
#include "protocol/calls/parameter.h"
#include "protocol/calls/row_ids.h"
#include "server/worker/migration/array_contents.h"
#include "server/worker/migration/command_stream.h"
#include "tests/server/worker/migration/moved_session.h"
#include "tests/support/catch.h"
#include "tests/support/recording_connection.h"

using namespace gpupool;
using namespace gpupool::worker;
using namespace gpupool::worker::test;
using cuda::Kind;
using cuda::make_handle;
using wire::Command;

namespace {

using Shape = CUDA_ARRAY3D_DESCRIPTOR;

constexpr uint8_t kThere = 1;
constexpr uint64_t kPlain = make_handle(Kind::array, 1, 400), kLarge = make_handle(Kind::array, 1, 401),
                   kLayers = make_handle(Kind::array, 1, 402), kEmpty = make_handle(Kind::array, 1, 403),
                   kLevels = make_handle(Kind::mipmapped_array, 1, 404),
                   kLevel = make_handle(Kind::array, 1, 405);
constexpr Shape kPlainShape{40, 30, 0, CU_AD_FORMAT_FLOAT, 1, CUDA_ARRAY3D_SURFACE_LDST},
    kLargeShape{300, 500, 0, CU_AD_FORMAT_FLOAT, 4, 0},  // larger than one command
    kLayersShape{64, 0, 5, CU_AD_FORMAT_UNSIGNED_INT16, 2, CUDA_ARRAY3D_LAYERED},
    kLevelShape{16, 8, 0, CU_AD_FORMAT_UNSIGNED_INT32, 1, 0};
constexpr uint64_t kRoom = 2 * uint64_t{kLargeShape.Width} * kLargeShape.Height * 16 / kPage * kPage;
constexpr uint64_t kPieceBytes = 128 * 1024;  // acknowledged by replies alone

// Copies between an array and the session's memory at its first address.
void copy(TestClient& client, uint64_t array, const Shape& shape, bool in) {
  CUDA_MEMCPY3D c{};
  c.srcMemoryType = in ? CU_MEMORYTYPE_DEVICE : CU_MEMORYTYPE_ARRAY;
  c.dstMemoryType = in ? CU_MEMORYTYPE_ARRAY : CU_MEMORYTYPE_DEVICE;
  (in ? c.dstArray : c.srcArray) = cuda::handle_from_bits<CUarray>(array);
  (in ? c.srcDevice : c.dstDevice) = client.address(0);
  const Scrubber::Box box = Scrubber::box_of(shape);
  c.srcPitch = c.dstPitch = c.WidthInBytes = box.width;
  c.srcHeight = c.dstHeight = c.Height = box.height;
  c.Depth = box.depth;
  REQUIRE(client.ask("cuMemcpy3DAsync_v2", bytes_of(kThere, c, uint64_t{0})) == CUDA_SUCCESS);
}

std::vector<std::byte> content_of(const Shape& shape, unsigned seed) {
  return pattern(cuda::array_bytes(shape), seed);
}

void write(TestClient& client, uint64_t array, const Shape& shape, unsigned seed) {
  const auto all = content_of(shape, seed);
  for (size_t at = 0; at < all.size(); at += kPieceBytes) {
    const auto end = std::min<size_t>(at + kPieceBytes, all.size());
    const std::vector<std::byte> piece(all.begin() + static_cast<ptrdiff_t>(at),
                                       all.begin() + static_cast<ptrdiff_t>(end));
    REQUIRE(client.result(client.copy_in(0, at, piece, true)) == CUDA_SUCCESS);
  }
  copy(client, array, shape, true);
}

std::vector<std::byte> read(TestClient& client, uint64_t array, const Shape& shape) {
  copy(client, array, shape, false);
  std::vector<std::byte> all;
  for (const size_t bytes = cuda::array_bytes(shape); all.size() < bytes;) {
    const auto piece =
        client.data(client.copy_out(0, all.size(), std::min<size_t>(kPieceBytes, bytes - all.size())));
    all.insert(all.end(), piece.begin(), piece.end());
  }
  return all;
}

uint64_t make_object(TestClient& client, const char* call, const CUDA_RESOURCE_DESC& resource) {
  const bool surface = std::string_view(call) == "cuSurfObjectCreate";
  const auto body = surface ? bytes_of(kThere, kThere, resource)
                            : bytes_of(kThere, kThere, resource, kThere, CUDA_TEXTURE_DESC{}, uint8_t{0});
  const Message reply = client.reply(client.call(call, body, true));
  REQUIRE(reply.header.result == CUDA_SUCCESS);
  return reply.as<uint64_t>();
}

CUDA_RESOURCE_DESC on_array(uint64_t array) {
  CUDA_RESOURCE_DESC resource{};
  resource.resType = CU_RESOURCE_TYPE_ARRAY;
  resource.res.array.hArray = cuda::handle_from_bits<CUarray>(array);
  return resource;
}

void make_arrays(TestClient& client) {
  client.map(0, kRoom);
  const std::pair<uint64_t, Shape> arrays[] = {
      {kPlain, kPlainShape}, {kLarge, kLargeShape}, {kLayers, kLayersShape}, {kEmpty, kPlainShape}};
  for (const auto& [handle, shape] : arrays)
    REQUIRE(client.ask("cuArray3DCreate_v2", bytes_of(handle, kThere, shape)) == CUDA_SUCCESS);
  Shape whole = kLevelShape;
  whole.Width *= 2;
  whole.Height *= 2;
  REQUIRE(client.ask("cuMipmappedArrayCreate", bytes_of(kLevels, kThere, whole, 3u)) == CUDA_SUCCESS);
  REQUIRE(client.ask(Command::array_part, bytes_of(wire::ArrayPart{kLevel, kLevels, 1, 0})) == CUDA_SUCCESS);
  write(client, kPlain, kPlainShape, 1);
  write(client, kLarge, kLargeShape, 2);
  write(client, kLayers, kLayersShape, 3);
  write(client, kLevel, kLevelShape, 4);
}

// Returns the objects' numbers. Those before them are free again.
std::vector<uint64_t> make_objects(TestClient& client) {
  std::vector<uint64_t> numbers;
  for (int i = 0; i < 3; ++i) numbers.push_back(make_object(client, "cuTexObjectCreate", on_array(kPlain)));
  for (const uint64_t number : numbers)
    REQUIRE(client.ask("cuTexObjectDestroy", bytes_of(number)) == CUDA_SUCCESS);
  CUDA_RESOURCE_DESC levels{}, linear{};
  levels.resType = CU_RESOURCE_TYPE_MIPMAPPED_ARRAY;
  levels.res.mipmap.hMipmappedArray = cuda::handle_from_bits<CUmipmappedArray>(kLevels);
  linear.resType = CU_RESOURCE_TYPE_LINEAR;
  linear.res.linear = {client.address(0), CU_AD_FORMAT_FLOAT, 1, 4096};
  std::vector<uint64_t> all{make_object(client, "cuTexObjectCreate", on_array(kEmpty)),
                            make_object(client, "cuTexObjectCreate", on_array(kPlain)),
                            make_object(client, "cuSurfObjectCreate", on_array(kLevel)),
                            make_object(client, "cuTexObjectCreate", levels),
                            make_object(client, "cuTexObjectCreate", linear)};
  REQUIRE(client.ask("cuTexObjectDestroy", bytes_of(all.front())) == CUDA_SUCCESS);
  all.erase(all.begin());
  return all;
}

// What a hostile source sends: a session with one array, and these parts of it.
std::string stream_of_parts(const std::vector<std::pair<wire::FillArray, size_t>>& parts,
                            const Shape& shape = kPlainShape) {
  testing::RecordingConnection recorder;
  CommandSender sender(recorder, std::chrono::seconds(1));
  const auto send = [&](uint16_t id, uint64_t context, std::span<const std::byte> body,
                        std::span<const std::byte> more = {}) {
    REQUIRE(sender.send({.id = id, .context = context}, body, more));
  };
  const auto command = [](Command id) { return static_cast<uint16_t>(id); };
  send(command(Command::retain_primary_context), 0, bytes_of(wire::PrimaryContext{kContext, 0, 0}));
  send(cuda::row_id::cuArray3DCreate_v2, kContext, bytes_of(kPlain, kThere, shape));
  for (const auto& [part, size] : parts)
    send(command(Command::fill_array), kContext, bytes_of(part), pattern(size, 5));
  send(command(Command::end_migration), 0, bytes_of(wire::EndMigration{0, 100, 1, 0}));
  return recorder.bytes;
}

}  // namespace

TEST_CASE("boxes cover an array once, and none is too large") {
  const Shape shapes[] = {kPlainShape,
                          kLargeShape,
                          kLayersShape,
                          {1, 0, 0, CU_AD_FORMAT_UNSIGNED_INT8, 1, 0},
                          {1000, 0, 0, CU_AD_FORMAT_FLOAT, 4, 0},
                          {7, 5, 11, CU_AD_FORMAT_FLOAT, 2, 0}};
  for (const Shape& shape : shapes) {
    for (const uint64_t most : {uint64_t{1}, uint64_t{100}, uint64_t{4096}, uint64_t{1} << 20}) {
      const Scrubber::Box all = Scrubber::box_of(shape);
      std::vector<unsigned char> seen(all.width * all.height * all.depth);
      const uint64_t texel = cuda::texel_bytes(shape.Format, shape.NumChannels);
      REQUIRE(for_each_box(shape, most, [&](const Scrubber::Box& box) {
        CHECK(box.width * box.height * box.depth <= std::max(most, texel));
        CHECK((box.x % texel == 0 && box.width % texel == 0));
        for (uint64_t z = box.z; z < box.z + box.depth; ++z) {
          for (uint64_t y = box.y; y < box.y + box.height; ++y) {
            for (uint64_t x = box.x; x < box.x + box.width; ++x)
              ++seen.at((z * all.height + y) * all.width + x);
          }
        }
        return Result<void>{};
      }));
      CHECK(std::ranges::all_of(seen, [](unsigned char times) { return times == 1; }));
    }
  }
}

TEST_CASE("arrays have their contents, and textures and surfaces their numbers, after a migration") {
  std::vector<uint64_t> numbers;
  const std::string stream = suspend([&](TestClient& client) {
    make_arrays(client);
    numbers = make_objects(client);
  });
  Adopting session(stream);
  INFO(session.reason);
  REQUIRE(session.adopted);
  TestClient& client = session.client;
  CHECK(read(client, kPlain, kPlainShape) == content_of(kPlainShape, 1));
  CHECK(read(client, kLarge, kLargeShape) == content_of(kLargeShape, 2));
  CHECK(read(client, kLayers, kLayersShape) == content_of(kLayersShape, 3));
  CHECK(read(client, kLevel, kLevelShape) == content_of(kLevelShape, 4));
  CHECK(read(client, kEmpty, kPlainShape) == std::vector<std::byte>(cuda::array_bytes(kPlainShape)));
  const auto textures = client.fake.locked([&] { return client.fake.textures; });
  CHECK(textures.size() == numbers.size());
  for (const uint64_t number : numbers) CHECK(textures.contains(number));
  for (const size_t i : {0, 1, 2, 3}) {
    const char* const call = i == 1 ? "cuSurfObjectDestroy" : "cuTexObjectDestroy";
    CHECK(client.ask(call, bytes_of(numbers[i])) == CUDA_SUCCESS);
  }
  CHECK(client.ask(Command::destroy_array, bytes_of(wire::DestroyArray{kLevels})) == CUDA_SUCCESS);
  CHECK(client.ask(Command::destroy_array, bytes_of(wire::DestroyArray{kLevel})) ==
        CUDA_ERROR_INVALID_HANDLE);
}

TEST_CASE("arrays of zeros are not sent") {
  const std::string empty = suspend([](TestClient& client) {
    const Shape large{512, 512, 0, CU_AD_FORMAT_FLOAT, 4, 0};
    REQUIRE(client.ask("cuArray3DCreate_v2", bytes_of(kLarge, kThere, large)) == CUDA_SUCCESS);
  });
  CHECK(empty.size() < 4096);
}

TEST_CASE("an array that was destroyed after its texture was made does not remain") {
  const std::string stream = suspend([](TestClient& client) {
    make_arrays(client);
    (void)make_object(client, "cuTexObjectCreate", on_array(kPlain));
    REQUIRE(client.ask(Command::destroy_array, bytes_of(wire::DestroyArray{kPlain})) == CUDA_SUCCESS);
  });
  Adopting session(stream);
  INFO(session.reason);
  REQUIRE(session.adopted);
  CHECK(session.client.fake.locked([&] { return session.client.fake.textures.size(); }) == 1);
  CHECK(session.client.ask(Command::destroy_array, bytes_of(wire::DestroyArray{kPlain})) ==
        CUDA_ERROR_INVALID_HANDLE);
}

TEST_CASE("a target whose driver gives textures other numbers refuses the session") {
  const std::string stream = suspend([](TestClient& client) {
    make_arrays(client);
    (void)make_object(client, "cuTexObjectCreate", on_array(kPlain));
  });
  Adopting session(stream, [](FakeDriver& fake) {
    fake.driver_reuses_handles = false;
    fake.next_handle += 1000;
  });
  CHECK_FALSE(session.adopted);
  CHECK(session.reason.find("cuTexObjectCreate: the result differs") != std::string::npos);
}

TEST_CASE("a hostile source writes nothing outside of an array") {
  const wire::FillArray whole{.array = kPlain,
                              .level = 0,
                              .reserved = 0,
                              .x = 0,
                              .y = 0,
                              .z = 0,
                              .width = 160,
                              .height = 30,
                              .depth = 1};
  const size_t all = cuda::array_bytes(kPlainShape);
  CHECK(Adopting(stream_of_parts({{whole, all}})).adopted);
  const auto altered = [&](auto&& alter) {
    wire::FillArray part = whole;
    alter(part);
    return std::pair(part, size_t{part.width} * part.height * part.depth);
  };
  std::vector<std::pair<wire::FillArray, size_t>> bad{{whole, all - 1}, {whole, all + 1}, {whole, 0}};
  bad.push_back(altered([](auto& part) { part.array = kLarge; }));
  bad.push_back(altered([](auto& part) { part.array = kContext; }));
  bad.push_back(altered([](auto& part) { part.level = 1; }));
  bad.push_back(altered([](auto& part) { part.x = 4; }));
  bad.push_back(altered([](auto& part) { part.x = 2, part.width = 4; }));
  bad.push_back(altered([](auto& part) { part.width = 6; }));
  bad.push_back(altered([](auto& part) { part.y = 1; }));
  bad.push_back(altered([](auto& part) { part.z = 1; }));
  bad.push_back(altered([](auto& part) { part.y = ~0u, part.height = 2; }));
  bad.push_back(altered([](auto& part) { part.height = 0; }));
  bad.push_back(altered([](auto& part) { part.depth = 2; }));
  bad.push_back({whole, all});
  bad.back().first.width = bad.back().first.height = bad.back().first.depth = ~0u;
  bad.push_back({whole, all});
  bad.back().first.reserved = 1;
  for (const auto& one : bad) {
    Adopting session(stream_of_parts({one}));
    INFO("array " << one.first.array << " x " << one.first.x << " width " << one.first.width << " bytes "
                  << one.second);
    CHECK_FALSE(session.adopted);
    CHECK(session.reason.find("fill_array") != std::string::npos);
  }
}

TEST_CASE("an array that a hostile source sends must fit into the device") {
  const Shape huge{16384, 16384, 512, CU_AD_FORMAT_FLOAT, 4, 0};
  Adopting session(stream_of_parts({}, huge));
  CHECK_FALSE(session.adopted);
  CHECK(session.reason.find("cuArray3DCreate_v2") != std::string::npos);
}
