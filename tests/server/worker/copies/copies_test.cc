// Tests copies in both directions, the order of data and replies, and mapping and freeing of device memory.
#include "protocol/wire/copies.h"

#include <sys/mman.h>

#include <cstring>

#include "common/sanitizers.h"
#include "protocol/wire/commands.h"
#include "tests/server/worker/test_client.h"
#include "tests/support/catch.h"
#include "tests/support/skip.h"

using namespace gpupool;
using namespace gpupool::worker::test;
using wire::Command;

namespace {

constexpr uint64_t kPage = FakeDriver::kGranularity;

uint64_t synchronize(TestClient& client, uint64_t stream) {
  return client.send(Command::synchronize_stream, bytes_of(stream), true);
}

}  // namespace

TEST_CASE("copies bytes of every size to the device and back") {
  TestClient client;
  client.retain();
  client.map(0, 64 * kPage);
  const uint64_t size = GENERATE(1u, 1000u, 16384u, 16385u, 65536u, 65537u, 1u << 20, (3u << 20) + 5);
  const auto data = pattern(size, 7);
  for (uint64_t at = 0; at < size; at += wire::kBulkChunkBytes) {
    const uint64_t part = std::min<uint64_t>(wire::kBulkChunkBytes, size - at);
    client.copy_in(
        0, at, {data.begin() + static_cast<ptrdiff_t>(at), data.begin() + static_cast<ptrdiff_t>(at + part)});
  }
  CHECK(client.data(client.copy_out(0, 0, size)) == data);
}

TEST_CASE("uses CPU access to device memory only where it is supported and works") {
  using HostAccess = FakeDriver::HostAccess;
  const HostAccess access = GENERATE(HostAccess::works, HostAccess::unsupported, HostAccess::faults);
  TestClient client{false,   nullptr, 0,  false,
                    nullptr, false,   {}, [=](FakeDriver& fake) { fake.host_access = access; }};
  client.retain();
  client.map(0, kPage);
  const auto data = pattern(1000, 3);
  client.copy_in(0, 0, data);
  CHECK(client.data(client.copy_out(0, 0, data.size())) == data);
  CHECK(client.fake.locked([&] { return client.fake.mapped.at(client.address(0)).host; }) ==
        (access == HostAccess::works));
}

TEST_CASE("rows with a pitch") {
  TestClient client;
  client.retain();
  client.map(0, 64 * kPage);
  const uint64_t width = GENERATE(10u, 700'000u, 1'100'000u);
  const uint64_t rows = 3;
  const uint64_t pitch = width + 24;
  const auto data = pattern(width * rows, 9);
  for (uint64_t row = 0; row < rows; ++row) {
    for (uint64_t at = 0; at < width; at += 500'000) {
      const uint64_t part = std::min<uint64_t>(500'000, width - at);
      const auto first = data.begin() + static_cast<ptrdiff_t>(row * width + at);
      client.copy_in(0, row * pitch + at, {first, first + static_cast<ptrdiff_t>(part)});
    }
  }
  const uint64_t back =
      client.send(Command::copy_from_device,
                  bytes_of(wire::CopyFromDevice{0, client.address(0), pitch, width, rows}), true);
  CHECK(client.data(back) == data);
  if (width * rows > wire::kBulkChunkBytes) return;
  auto body = bytes_of(wire::CopyToDevice{0, client.address(kPage), pitch, static_cast<uint32_t>(width), 3});
  body.insert(body.end(), data.begin(), data.end());
  CHECK(client.ask(Command::copy_to_device, body) == CUDA_SUCCESS);
  CHECK(client.data(client.copy_out(0, kPage + pitch, width)) ==
        std::vector(data.begin() + static_cast<ptrdiff_t>(width),
                    data.begin() + static_cast<ptrdiff_t>(2 * width)));
}

TEST_CASE("a copy with a foreign address fails and the session goes on") {
  TestClient client;
  client.retain();
  client.map(0, kPage);
  const auto data = pattern(64, 1);
  const uint64_t address = GENERATE(0ull, 8ull, ~0ull - 63);
  CHECK(client.result(client.copy_in(0, address - client.fake.range_base, data, true)) ==
        CUDA_ERROR_INVALID_VALUE);
  CHECK(client.result(client.copy_out(0, address - client.fake.range_base, 64)) == CUDA_ERROR_INVALID_VALUE);
  // The worker's own memory is not device memory.
  const auto own = reinterpret_cast<uint64_t>(data.data());
  CHECK(client.result(client.copy_in(0, own - client.fake.range_base, data, true)) ==
        CUDA_ERROR_INVALID_VALUE);
  CHECK(client.ask("cuMemsetD8Async", bytes_of(own, uint8_t{0}, uint64_t{64}, uint64_t{0})) ==
        CUDA_ERROR_INVALID_VALUE);
  // Sizes that overflow.
  CHECK(client.ask(Command::copy_from_device, bytes_of(wire::CopyFromDevice{0, client.address(0), ~0ull, 2,
                                                                            3})) == CUDA_ERROR_INVALID_VALUE);
  CHECK(client.result(client.copy_in(0, 0, data, true)) == CUDA_SUCCESS);
}

TEST_CASE("the first copy of a context that a kernel has broken fails with the kernel's error") {
  TestClient client;
  client.retain();
  client.map(0, kPage);
  CHECK(client.ask("cuCtxGetCacheConfig", bytes_of(uint8_t{1})) == CUDA_SUCCESS);
  {
    const std::lock_guard lock(client.fake.mutex);
    client.fake.sticky = CUDA_ERROR_ILLEGAL_ADDRESS;
  }
  CHECK(client.result(client.copy_out(0, 0, 64)) == CUDA_ERROR_ILLEGAL_ADDRESS);
}

TEST_CASE("the data of a finished copy comes before the answer to a later wait") {
  TestClient client;
  client.retain();
  client.create_stream(0);
  client.create_stream(1);
  client.map(0, 64 * kPage);
  const auto data = pattern(2 << 20, 5);
  client.copy_in(0, 0, {data.begin(), data.begin() + (1 << 20)});
  client.copy_in(0, 1 << 20, {data.begin() + (1 << 20), data.end()});
  CHECK(client.ask(Command::synchronize_context, {}) == CUDA_SUCCESS);

  client.fake.hold(1);
  const uint64_t held = client.copy_out(stream_handle(1), 0, data.size());
  const uint64_t free = client.copy_out(stream_handle(0), 0, data.size());
  const uint64_t wait = synchronize(client, stream_handle(0));
  CHECK(client.data(free) == data);
  CHECK(client.result(wait) == CUDA_SUCCESS);  // although the other stream's copy is held
  CHECK(client.ask("cuStreamQuery", bytes_of(stream_handle(0))) == CUDA_SUCCESS);
  CHECK(client.ask("cuStreamQuery", bytes_of(stream_handle(1))) == CUDA_ERROR_NOT_READY);
  const uint64_t late = synchronize(client, stream_handle(1));
  CHECK(client.silent());
  client.fake.let_go(1);
  CHECK(client.data(held) == data);
  CHECK(client.result(late) == CUDA_SUCCESS);
}

TEST_CASE("many copies on many streams keep their order and their data") {
  TestClient client;
  client.retain();
  client.map(0, 64 * kPage);
  const auto data = pattern(100'000, 3);
  client.copy_in(0, 0, data);
  for (uint32_t i = 0; i < 8; ++i) client.create_stream(i);
  for (int i = 0; i < 8; ++i) client.fake.hold(i);
  std::map<uint64_t, std::vector<std::byte>> got;
  std::map<uint64_t, bool> done;
  for (uint32_t i = 0; i < 200; ++i) {
    const uint64_t sequence = client.copy_out(stream_handle(i % 8), i, 90'000 + i);
    got[sequence];
  }
  for (int i = 7; i >= 0; --i) client.fake.let_go(i);
  while (done.size() < got.size()) {
    const Message message = client.receive();
    const uint64_t sequence = message.header.sequence;
    REQUIRE_FALSE(done.contains(sequence));
    if (message.header.kind == wire::MessageKind::reply) {
      CHECK(message.header.result == CUDA_SUCCESS);
      done[sequence] = true;
      continue;
    }
    auto& bytes = got.at(sequence);
    REQUIRE(message.as<wire::DeviceData>().offset == bytes.size());
    bytes.insert(bytes.end(), message.body.begin() + 8, message.body.end());
  }
  uint32_t i = 0;
  for (const auto& [sequence, bytes] : got) {
    CHECK(bytes == std::vector(data.begin() + i, data.begin() + i + 90'000 + i));
    ++i;
  }
}

TEST_CASE("queues more copies than staging memory holds on a stalled stream") {
  TestClient client;
  client.retain();
  client.create_stream(0);
  client.map(0, 64 * kPage);
  client.fake.hold(0);
  const auto data = pattern(1 << 20, 2);
  for (int i = 0; i < 80; ++i) client.copy_in(stream_handle(0), 0, data);
  const uint64_t wait = synchronize(client, stream_handle(0));
  CHECK(client.silent());
  client.fake.let_go(0);
  CHECK(client.result(wait) == CUDA_SUCCESS);
  for (int i = 0; i < 200; ++i) client.copy_in(stream_handle(0), 0, data);
  CHECK(client.result(synchronize(client, stream_handle(0))) == CUDA_SUCCESS);
  CHECK(client.fake.pinned_count() < 100);
}

TEST_CASE("maps memory at the requested address within the range and only once") {
  TestClient client;
  client.retain();
  const auto map = [&](uint64_t address, uint64_t size, int device = 0) {
    return client.ask(Command::map_memory, bytes_of(wire::MapMemory{address, size, device, 0}));
  };
  CHECK(map(client.address(0), kPage) == CUDA_SUCCESS);
  CHECK(map(client.address(0), kPage) == CUDA_ERROR_INVALID_VALUE);
  CHECK(map(client.address(kPage), 2 * kPage) == CUDA_SUCCESS);
  CHECK(map(client.address(2 * kPage), kPage) == CUDA_ERROR_INVALID_VALUE);
  CHECK(map(client.address(0) - kPage, 2 * kPage) == CUDA_ERROR_INVALID_VALUE);
  CHECK(map(client.address(client.fake.range_size - kPage), 2 * kPage) == CUDA_ERROR_INVALID_VALUE);
  CHECK(map(client.address(8 * kPage) + 1, kPage) == CUDA_ERROR_INVALID_VALUE);
  CHECK(map(client.address(8 * kPage), kPage + 1) == CUDA_ERROR_INVALID_VALUE);
  CHECK(map(client.address(8 * kPage), 0) == CUDA_ERROR_INVALID_VALUE);
  CHECK(map(client.address(8 * kPage), ~0ull - kPage + 1) == CUDA_ERROR_INVALID_VALUE);
  CHECK(map(client.address(8 * kPage), kPage, 1) == CUDA_ERROR_INVALID_DEVICE);
  CHECK(map(client.address(8 * kPage), kPage, -1) == CUDA_ERROR_INVALID_DEVICE);
  CHECK(map(client.address(8 * kPage), FakeDriver::kMemory) == CUDA_ERROR_OUT_OF_MEMORY);
}

TEST_CASE("frees take effect after earlier work and in order and are reported") {
  TestClient client;
  client.retain();
  client.create_stream(0);
  client.create_stream(1);
  client.map(0, kPage);
  client.map(kPage, kPage);
  CHECK(client.ask(Command::synchronize_context, {}) == CUDA_SUCCESS);
  client.fake.hold(0);
  client.call("cuMemsetD8Async", bytes_of(client.address(0), uint8_t{1}, uint64_t{16}, stream_handle(0)));
  const uint64_t first = client.send(Command::free_memory,
                                     bytes_of(wire::FreeMemory{client.address(0), kPage, wire::kAllStreams}));
  const uint64_t second = client.send(
      Command::free_memory, bytes_of(wire::FreeMemory{client.address(kPage), kPage, stream_handle(1)}));
  const uint64_t third =
      client.send(Command::free_memory, bytes_of(wire::FreeMemory{0, 0, wire::kAllStreams}));
  Message reply = client.reply(synchronize(client, stream_handle(1)));
  CHECK(reply.header.result == CUDA_SUCCESS);
  CHECK(reply.header.retired < first);
  CHECK(client.fake.used() == 2 * kPage);
  // From the client's point of view the memory is already freed.
  const uint64_t refused =
      client.send(Command::free_memory, bytes_of(wire::FreeMemory{client.address(0), kPage, 0}), true);
  CHECK(client.result(refused) == CUDA_ERROR_INVALID_VALUE);
  client.fake.let_go(0);
  reply = client.reply(synchronize(client, stream_handle(0)));
  CHECK(reply.header.retired == refused);  // also of a failed free: its addresses can be reused
  CHECK(second < third);
  CHECK(client.fake.used() == 0);
  CHECK(client.ask(Command::free_memory, bytes_of(wire::FreeMemory{client.address(0), kPage, 0})) ==
        CUDA_ERROR_INVALID_VALUE);
}

TEST_CASE("a free waits for a stream that was destroyed with work in it") {
  TestClient client;
  client.retain();
  client.create_stream(0);
  client.create_stream(1);
  client.map(0, kPage);
  client.fake.hold(-1);
  client.call("cuMemsetD8Async", bytes_of(client.address(0), uint8_t{1}, uint64_t{16}, uint64_t{0}));
  client.call("cuStreamDestroy_v2", bytes_of(stream_handle(1)));
  client.send(Command::free_memory, bytes_of(wire::FreeMemory{client.address(0), kPage, wire::kAllStreams}));
  CHECK(client.result(synchronize(client, stream_handle(0))) == CUDA_SUCCESS);
  CHECK(client.fake.used() == kPage);
  client.fake.let_go(-1);
  CHECK(client.ask(Command::synchronize_context, {}) == CUDA_SUCCESS);
  CHECK(client.fake.used() == 0);
}

TEST_CASE("many frees share their events") {
  TestClient client;
  client.retain();
  client.create_stream(0);
  for (uint64_t i = 0; i < 100; ++i) client.map(i * kPage, kPage);
  CHECK(client.ask(Command::synchronize_context, {}) == CUDA_SUCCESS);
  client.fake.hold(0);
  client.call("cuMemsetD8Async", bytes_of(client.address(0), uint8_t{1}, uint64_t{16}, stream_handle(0)));
  for (uint64_t i = 0; i < 100; ++i) {
    client.send(Command::free_memory,
                bytes_of(wire::FreeMemory{client.address(i * kPage), kPage, wire::kAllStreams}));
  }
  CHECK(client.ask("cuCtxGetCacheConfig", bytes_of(uint8_t{1})) == CUDA_SUCCESS);
  CHECK(client.fake.event_count() <= 2);
  client.fake.let_go(0);
  CHECK(client.ask(Command::synchronize_context, {}) == CUDA_SUCCESS);
  CHECK(client.fake.used() == 0);
}

TEST_CASE("reports a background copy's error with the next reply") {
  TestClient client;
  client.retain();
  const uint64_t sequence =
      client.send(Command::copy_from_device, bytes_of(wire::CopyFromDevice{0, client.address(0), 0, 16, 1}));
  CHECK(client.result(sequence) == CUDA_ERROR_INVALID_VALUE);  // ends the transfer
  CHECK(client.ask("cuCtxGetCacheConfig", bytes_of(uint8_t{1})) == CUDA_ERROR_INVALID_VALUE);
  CHECK(client.ask("cuCtxGetCacheConfig", bytes_of(uint8_t{1})) == CUDA_SUCCESS);
}

TEST_CASE("memory that is being freed counts as free when more is asked for") {
  TestClient client;
  client.retain();
  client.map(0, FakeDriver::kMemory);
  client.call("cuMemsetD8Async", bytes_of(client.address(0), uint8_t{1}, uint64_t{16}, uint64_t{0}));
  client.send(Command::free_memory,
              bytes_of(wire::FreeMemory{client.address(0), FakeDriver::kMemory, wire::kAllStreams}));
  client.map(FakeDriver::kMemory, FakeDriver::kMemory);
  CHECK(client.ask(Command::synchronize_context, {}) == CUDA_SUCCESS);
  client.create_stream(0);
  client.fake.hold(0);
  client.call("cuMemsetD8Async",
              bytes_of(client.address(FakeDriver::kMemory), uint8_t{1}, uint64_t{16}, stream_handle(0)));
  client.send(Command::free_memory, bytes_of(wire::FreeMemory{client.address(FakeDriver::kMemory),
                                                              FakeDriver::kMemory, wire::kAllStreams}));
  const uint64_t late =
      client.send(Command::map_memory, bytes_of(wire::MapMemory{client.address(0), kPage, 0, 0}), true);
  CHECK(client.silent());
  client.fake.let_go(0);
  CHECK(client.result(late) == CUDA_SUCCESS);
}

TEST_CASE("the range can be moved while nothing is mapped") {
  TestClient client;
  const Message moved =
      client.reply(client.send(Command::move_addresses, bytes_of(wire::MoveAddresses{0, 1 << 20}), true));
  const auto range = moved.as<wire::AddressRange>();
  CHECK(range.size == 1 << 20);
  CHECK(range.base != client.fake.range_base);
  client.retain();
  CHECK(client.ask(Command::map_memory, bytes_of(wire::MapMemory{range.base, kPage, 0, 0})) == CUDA_SUCCESS);
  CHECK(client.ask(Command::move_addresses, bytes_of(wire::MoveAddresses{0, 1 << 20})) ==
        CUDA_ERROR_INVALID_VALUE);
}

TEST_CASE("reserves the addresses that the client asks to avoid") {
  if (kThreadSanitized) {
    return gpupool::testing::report_skip("ThreadSanitizer keeps these addresses for itself");
  }
  constexpr uint64_t kBase = 0x1000'0000'0000, kGiB = 1u << 30;
  void* const busy = reinterpret_cast<void*>(kBase + 5 * kGiB);
  REQUIRE(::mmap(busy, kGiB, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED_NOREPLACE, -1,
                 0) == busy);
  {
    TestClient client;
    client.retain();
    client.send(Command::avoid_addresses, bytes_of(wire::AddressRange{kBase, 16 * kGiB}));
    REQUIRE(client.ask(Command::synchronize_context, {}) == CUDA_SUCCESS);
    const auto taken = [](uint64_t address) {
      unsigned char page = 0;
      return ::mincore(reinterpret_cast<void*>(address), 4096, &page) == 0;
    };
    CHECK(taken(kBase));
    CHECK(taken(kBase + 4 * kGiB));
    CHECK(taken(kBase + 6 * kGiB));
    CHECK(taken(kBase + 15 * kGiB));
  }
  ::munmap(busy, kGiB);
}
