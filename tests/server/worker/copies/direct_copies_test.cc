// Tests direct copies from and to memory that the client has registered, with a DirectMemory that the test
// controls.
#include <cstring>

#include "protocol/wire/commands.h"
#include "protocol/wire/copies.h"
#include "server/worker/memory/device_windows.h"
#include "tests/server/worker/test_client.h"
#include "tests/support/catch.h"

using namespace gpupool;
using namespace gpupool::worker::test;
using testing::FakeDirectMemory;
using transport::DirectMemory;
using wire::Command;

namespace {

constexpr uint64_t kPage = FakeDriver::kGranularity;

// A session and its client's registered memory.
struct Fixture {
  explicit Fixture(bool staged = false, uint64_t bytes = 16 << 20)
      : client(false, nullptr, 0, false, &direct, staged), memory(bytes) {
    region = *direct.add(memory.data(), memory.size(), DirectMemory::Access::remote);
    client.retain();
    client.create_stream(0);
    client.create_stream(1);
    // Two adjacent mappings; a window ends in the middle of the first one.
    start = worker::kWindowBytes - client.fake.range_base % worker::kWindowBytes;
    if (start < (8 << 20)) start += worker::kWindowBytes;
    start -= 8 << 20;
    client.map(start, 12 << 20);
    client.map(start + (12 << 20), 2 << 20);
  }
  // Checks after the session that only the client's memory is still registered and that no unregistered
  // memory was accessed.
  ~Fixture() {
    finish();
    CHECK(direct.regions() == 1);
    CHECK_FALSE(direct.misused());
    CHECK(client.fake.event_count() == 0);
    CHECK(client.fake.pinned_count() == 0);
  }
  int finish() {
    if (!finished) status = client.finish();
    finished = true;
    return status;
  }
  wire::Buffer body(uint64_t stream, uint64_t offset, uint64_t at, uint64_t width, uint64_t rows = 1,
                    uint64_t pitch = 0) {
    return bytes_of(wire::DirectCopy{
        {stream, client.address(start + offset), rows == 1 ? width : pitch, width, rows, 0, 0},
        reinterpret_cast<uint64_t>(memory.data() + at),
        region.remote_key,
        0});
  }
  uint64_t up(uint64_t stream, uint64_t offset, uint64_t at, uint64_t bytes) {
    return client.send(Command::direct_to_device, body(stream, offset, at, bytes));
  }
  uint64_t down(uint64_t stream, uint64_t offset, uint64_t at, uint64_t bytes) {
    return client.send(Command::direct_from_device, body(stream, offset, at, bytes));
  }
  uint64_t synchronize(uint64_t stream) {
    return client.send(Command::synchronize_stream, bytes_of(stream), true);
  }
  void fill(uint64_t at, const std::vector<std::byte>& data) {
    std::memcpy(memory.data() + at, data.data(), data.size());
  }
  bool holds(uint64_t at, const std::vector<std::byte>& data) {
    return std::memcmp(memory.data() + at, data.data(), data.size()) == 0;
  }

  FakeDirectMemory direct;
  TestClient client;
  std::vector<std::byte> memory;
  DirectMemory::Region region;
  uint64_t start = 0;  // offset of the device memory in the range
  bool finished = false;
  int status = 0;
};

constexpr size_t kUnderWay = 2;  // as in remote_memory.cc

}  // namespace

TEST_CASE("copies bytes of every size directly and through staging") {
  const bool staged = GENERATE(false, true);
  Fixture fixture(staged);
  const uint64_t size = GENERATE(1u, 65537u, 1u << 20, (3u << 20) + 5);
  const uint64_t offset =
      GENERATE(0u, (7u << 20) + 3, (10u << 20) + 3);  // crosses the end of a window, and of a mapping
  if (staged && offset > (8 << 20)) return;           // CUDA's copies do not cross mappings
  const auto data = pattern(size, 7);
  fixture.fill(1, data);
  CHECK(fixture.client.result(fixture.up(stream_handle(0), offset, 1, size)) == CUDA_SUCCESS);
  CHECK(fixture.client.result(fixture.down(stream_handle(0), offset, 8 << 20, size)) == CUDA_SUCCESS);
  CHECK(fixture.holds(8 << 20, data));
  CHECK((fixture.client.fake.pinned_count() > 0) == staged);
}

TEST_CASE("copies more pitched rows than the ring holds") {
  Fixture fixture;
  constexpr uint64_t kWidth = 600'000, kRows = 19, kPitch = 610'000;  // one piece each
  const auto data = pattern(kWidth * kRows, 9);
  fixture.fill(0, data);
  CHECK(fixture.client.result(fixture.client.send(
            Command::direct_to_device, fixture.body(0, 0, 0, kWidth, kRows, kPitch))) == CUDA_SUCCESS);
  CHECK(fixture.client.data(fixture.client.copy_out(0, fixture.start + 3 * kPitch, kWidth)) ==
        std::vector(data.begin() + 3 * kWidth, data.begin() + 4 * kWidth));
  fixture.fill(0, pattern(data.size(), 1));
  CHECK(fixture.client.result(fixture.client.send(
            Command::direct_from_device, fixture.body(0, 0, 0, kWidth, kRows, kPitch))) == CUDA_SUCCESS);
  CHECK(fixture.holds(0, data));
}

TEST_CASE("accesses memory when the stream reaches the copy and does not delay other copies") {
  Fixture fixture;
  fixture.client.fake.hold(0);
  const auto first = pattern(2 << 20, 1), second = pattern(2 << 20, 2);
  fixture.fill(0, first);
  const uint64_t up = fixture.up(stream_handle(0), 0, 0, first.size());
  const uint64_t down = fixture.down(stream_handle(0), 0, 4 << 20, first.size());
  CHECK(fixture.client.result(fixture.up(stream_handle(1), 4 << 20, 0, 1 << 20)) == CUDA_SUCCESS);
  fixture.fill(0, second);  // before the stream reaches the copy
  const uint64_t wait = fixture.synchronize(stream_handle(0));
  CHECK(fixture.client.silent());
  fixture.client.fake.let_go(0);
  CHECK(fixture.client.result(up) == CUDA_SUCCESS);
  CHECK(fixture.client.result(down) == CUDA_SUCCESS);
  CHECK(fixture.client.result(wait) == CUDA_SUCCESS);
  CHECK(fixture.holds(4 << 20, second));
}

TEST_CASE("many copies behind a host function leave a thread for it") {
  const bool staged = GENERATE(false, true);  // staged copies to the device read their data at once
  Fixture fixture(staged);
  constexpr int kCopies = 300;  // more than there are wait threads
  fixture.client.fake.hold(0);
  fixture.client.send(Command::host_function, bytes_of(wire::HostFunction{stream_handle(0), 7}));
  std::vector<uint64_t> copies;
  for (int i = 0; i < kCopies; ++i) {
    copies.push_back(!staged && i % 2 == 0 ? fixture.up(stream_handle(0), 0, 0, 4096)
                                           : fixture.down(stream_handle(0), 0, 0, 4096));
  }
  fixture.client.send(Command::ping, {});
  CHECK(fixture.client.receive().header.kind == wire::MessageKind::pong);  // all copies are queued
  fixture.client.fake.let_go(0);
  CHECK(fixture.client.receive().header.kind == wire::MessageKind::host_callback);
  fixture.client.send(Command::host_function_done, bytes_of(wire::HostFunctionDone{7, 0}));
  for (const uint64_t copy : copies) REQUIRE(fixture.client.result(copy) == CUDA_SUCCESS);
}

TEST_CASE("replies after the last piece and then resumes the stream") {
  Fixture fixture(GENERATE(false, true));
  const bool to_device = GENERATE(true, false);
  const uint64_t bytes = to_device ? 2 << 20 : 1 << 20;  // with the flush, as many pieces as may be in flight
  fixture.direct.hold();
  const uint64_t copy =
      to_device ? fixture.up(stream_handle(0), 0, 0, bytes) : fixture.down(stream_handle(0), 0, 0, bytes);
  const uint64_t wait = fixture.synchronize(stream_handle(0));
  REQUIRE(fixture.direct.await_posted(kUnderWay));
  fixture.direct.let_go(kUnderWay - 1);
  CHECK(fixture.client.silent());
  fixture.direct.let_go();
  CHECK(fixture.client.result(copy) == CUDA_SUCCESS);
  CHECK(fixture.client.result(wait) == CUDA_SUCCESS);
}

TEST_CASE("copies take turns, a few pieces at a time") {
  Fixture fixture;
  fixture.direct.hold();
  const uint64_t large = fixture.up(stream_handle(0), 0, 0, 11 << 20);
  REQUIRE(fixture.direct.await_posted(kUnderWay));
  const uint64_t small = fixture.up(stream_handle(1), 11 << 20, 0, 1 << 20);
  const uint64_t again = fixture.client.send(Command::ping, {});
  CHECK(fixture.client.receive().header.kind == wire::MessageKind::pong);  // the small copy is queued
  static_cast<void>(again);
  fixture.direct.let_go(kUnderWay + 2);
  CHECK(fixture.client.result(small) == CUDA_SUCCESS);
  CHECK(fixture.client.silent());
  fixture.direct.let_go();
  CHECK(fixture.client.result(large) == CUDA_SUCCESS);
  CHECK(fixture.direct.most_under_way() == kUnderWay);
}

TEST_CASE("ends the session with a reason for an unregistered key or address") {
  Fixture fixture;
  auto copy = wire::DirectCopy{{0, fixture.client.address(fixture.start), 1 << 20, 1 << 20, 1, 0, 0},
                               reinterpret_cast<uint64_t>(fixture.memory.data()),
                               fixture.region.remote_key,
                               0};
  const bool wrong_key = GENERATE(true, false);
  if (wrong_key)
    ++copy.key;
  else
    copy.memory += fixture.memory.size() - 1;
  fixture.client.send(GENERATE(Command::direct_to_device, Command::direct_from_device), bytes_of(copy));
  const Message end = fixture.client.receive();
  CHECK(end.header.kind == wire::MessageKind::end);
  CHECK(end.text() == "an RDMA copy from or to the client's memory failed: remote access error");
}

TEST_CASE("rejects invalid sizes and the session continues") {
  Fixture fixture;
  const auto refused = [&](wire::DirectCopy copy) {
    CHECK(fixture.client.result(fixture.client.send(Command::direct_to_device, bytes_of(copy))) ==
          CUDA_ERROR_INVALID_VALUE);
  };
  const wire::BulkCopy rows{0, fixture.client.address(fixture.start), 4096, 4096, 1, 0, 0};
  refused({rows, ~uint64_t{0} - 4000, 1, 0});
  wire::BulkCopy outside = rows;
  outside.device = reinterpret_cast<uint64_t>(fixture.memory.data());
  refused({outside, 4096, 1, 0});
  outside = rows;
  outside.device = fixture.client.fake.range_base + fixture.client.fake.range_size - 1;
  refused({outside, 4096, 1, 0});
  CHECK(fixture.client.result(fixture.client.send(
            Command::direct_to_device, bytes_of(wire::DirectCopy{{7, 0, 0, 1, 1, 0, 0}, 0, 0, 0}))) ==
        CUDA_ERROR_INVALID_HANDLE);
  CHECK(fixture.client.result(fixture.up(0, 0, 0, 4096)) == CUDA_SUCCESS);
}

TEST_CASE("ends the session cleanly when the connection breaks during copies") {
  const bool staged = GENERATE(false, true);
  Fixture fixture(staged);
  fixture.client.fake.hold(1);
  fixture.direct.hold();
  fixture.up(stream_handle(0), 0, 0, 11 << 20);
  fixture.down(stream_handle(1), 0, 0, 11 << 20);  // its stream has not reached the copy
  fixture.down(0, 0, 0, 11 << 20);
  REQUIRE(fixture.direct.await_posted(1));
  const bool hangs_up = GENERATE(true, false);
  if (!hangs_up) fixture.direct.break_connection();
  fixture.client.fake.let_go(1);
  fixture.finish();
}

TEST_CASE("destroying a context waits for its copies") {
  Fixture fixture(GENERATE(false, true));
  constexpr uint64_t kOther = cuda::make_handle(cuda::Kind::context, 1, 2);
  fixture.client.send(Command::create_context, bytes_of(wire::CreateContext{kOther, 0, 0}), false, 0);
  fixture.direct.hold();
  const uint64_t copy =
      fixture.client.send(Command::direct_to_device, fixture.body(0, 0, 0, 11 << 20), false, kOther);
  const uint64_t gone =
      fixture.client.send(Command::destroy_context, bytes_of(wire::DestroyContext{kOther}), true, 0);
  REQUIRE(fixture.direct.await_posted(kUnderWay));
  CHECK(fixture.client.silent());
  fixture.direct.let_go();
  CHECK(fixture.client.result(copy) == CUDA_SUCCESS);
  CHECK(fixture.client.result(gone) == CUDA_SUCCESS);
}

TEST_CASE("device memory is registered once, and no longer than it is mapped") {
  Fixture fixture;
  for (int i = 0; i < 3; ++i) CHECK(fixture.client.result(fixture.up(0, 0, 0, 1 << 20)) == CUDA_SUCCESS);
  CHECK(fixture.direct.regions() == 2);
  fixture.client.send(Command::free_memory, bytes_of(wire::FreeMemory{fixture.client.address(fixture.start),
                                                                      12 << 20, wire::kAllStreams}));
  CHECK(fixture.client.ask(Command::synchronize_context, {}) == CUDA_SUCCESS);
  CHECK(fixture.direct.regions() == 1);
  fixture.client.map(fixture.start, 12 << 20);
  CHECK(fixture.client.result(fixture.up(0, 0, 0, 1 << 20)) == CUDA_SUCCESS);
  CHECK(fixture.direct.regions() == 2);
}

TEST_CASE("stages copies where device memory cannot be registered") {
  Fixture fixture;
  fixture.direct.set_limit(fixture.direct.registered_bytes() + (5 << 20));
  const auto data = pattern(11 << 20, 3);
  fixture.fill(0, data);
  CHECK(fixture.client.result(fixture.up(0, 0, 0, data.size())) == CUDA_SUCCESS);
  CHECK(fixture.direct.registered_bytes() <= fixture.memory.size() + (5 << 20));
  CHECK(fixture.client.data(fixture.client.copy_out(0, fixture.start, data.size())) == data);
  fixture.direct.set_limit(0);  // windows already registered still work
  CHECK(fixture.client.result(fixture.up(stream_handle(0), 0, 0, data.size())) == CUDA_SUCCESS);
}

TEST_CASE("reports a deferred error with a copy's reply only if the flag is set") {
  Fixture fixture;
  fixture.client.call("cuMemsetD8Async", bytes_of(uint64_t{8}, uint8_t{0}, uint64_t{64}, uint64_t{0}));
  CHECK(fixture.client.result(fixture.up(0, 0, 0, 4096)) == CUDA_SUCCESS);
  CHECK(fixture.client.ask(Command::direct_to_device, fixture.body(0, 0, 0, 4096)) ==
        CUDA_ERROR_INVALID_VALUE);
  CHECK(fixture.client.ask(Command::direct_to_device, fixture.body(0, 0, 0, 4096)) == CUDA_SUCCESS);
}

TEST_CASE("rejects direct copies with a reply on a connection without direct memory") {
  TestClient client;
  client.retain();
  client.map(0, kPage);
  const auto body = bytes_of(wire::DirectCopy{{0, client.address(0), 4096, 4096, 1, 0, 0}, 4096, 1, 0});
  CHECK(client.result(client.send(Command::direct_from_device, body)) == CUDA_ERROR_NOT_SUPPORTED);
}
