// Tests host memory that the client shares: direct copies to and from it in stream order; a client cannot use
// it to reach other memory, and it does not outlive the session.
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstring>

#include "protocol/wire/commands.h"
#include "protocol/wire/copies.h"
#include "server/worker/memory/shared_host_memory.h"
#include "tests/server/worker/test_client.h"
#include "tests/support/catch.h"

using namespace gpupool;
using namespace gpupool::worker::test;
using wire::Command;

namespace {

constexpr uint64_t kPage = FakeDriver::kGranularity;
constexpr uint64_t kSize = 64 * 1024;

// The client's side of one shared memory.
class Memory {
 public:
  explicit Memory(uint64_t size = kSize, int seals = F_SEAL_SHRINK, bool filled = true)
      : descriptor_(::memfd_create("test", MFD_CLOEXEC | MFD_ALLOW_SEALING)), size_(size) {
    REQUIRE(::ftruncate(descriptor_, static_cast<off_t>(size)) == 0);
    if (filled) REQUIRE(::posix_fallocate(descriptor_, 0, static_cast<off_t>(size)) == 0);
    void* const mapped = ::mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_SHARED, descriptor_, 0);
    REQUIRE(mapped != MAP_FAILED);
    bytes_ = static_cast<std::byte*>(mapped);
    REQUIRE(::fcntl(descriptor_, F_ADD_SEALS, seals) == 0);
  }
  ~Memory() {
    ::munmap(bytes_, size_);
    ::close(descriptor_);
  }
  std::byte* bytes() { return bytes_; }
  int copy() const { return ::fcntl(descriptor_, F_DUPFD_CLOEXEC, 0); }

 private:
  const int descriptor_;
  const uint64_t size_;
  std::byte* bytes_ = nullptr;
};

struct Sharing : TestClient {
  Sharing() : TestClient(false, nullptr, 0, true) {
    retain();
    map(0, 4 * kPage);
  }
  CUresult share(const Memory& memory, uint64_t id, uint64_t size = kSize) {
    give_descriptor(memory.copy());
    return ask(Command::share_host_memory, bytes_of(wire::ShareHostMemory{id, size}));
  }
  CUresult copy(wire::CopyShared body) { return ask(Command::copy_shared, bytes_of(body)); }
  wire::CopyShared line(uint64_t id, uint64_t offset, uint64_t bytes, bool up, uint64_t stream = 0) {
    return {stream, address(0), bytes, id, offset, bytes, bytes, 1, up ? 1u : 0u, 0};
  }
  CUresult synchronize(uint64_t stream) { return ask(Command::synchronize_stream, bytes_of(stream)); }
};

bool eventually(const std::function<bool()>& condition) {
  for (int round = 0; round < 2000; ++round) {
    if (condition()) return true;
    ::usleep(1000);
  }
  return false;
}

}  // namespace

TEST_CASE("copies bytes and rows directly between shared memory and the device") {
  Memory memory;
  Sharing client;
  REQUIRE(client.share(memory, 7) == CUDA_SUCCESS);
  CHECK(client.fake.registered_count() == 1);
  const auto data = pattern(kSize, 3);
  std::memcpy(memory.bytes(), data.data(), kSize);
  CHECK(client.copy(client.line(7, 100, 1000, true)) == CUDA_SUCCESS);
  CHECK(client.copy(client.line(7, 5000, 1000, false)) == CUDA_SUCCESS);
  CHECK(client.synchronize(0) == CUDA_SUCCESS);
  CHECK(std::memcmp(memory.bytes() + 5000, data.data() + 100, 1000) == 0);
  CHECK(std::memcmp(memory.bytes() + 6000, data.data() + 6000, 100) == 0);
  // Three rows of ten bytes: first 16 bytes apart here and 100 apart on the device, then packed.
  CHECK(client.copy({0, client.address(0), 100, 7, 0, 16, 10, 3, 1, 0}) == CUDA_SUCCESS);
  CHECK(client.copy({0, client.address(0), 100, 7, 30'000, 10, 10, 3, 0, 0}) == CUDA_SUCCESS);
  CHECK(client.synchronize(0) == CUDA_SUCCESS);
  for (int row = 0; row < 3; ++row)
    CHECK(std::memcmp(memory.bytes() + 30'000 + row * 10, data.data() + row * 16, 10) == 0);
}

TEST_CASE("reads shared memory when the stream reaches the copy") {
  Memory memory;
  Sharing client;
  REQUIRE(client.share(memory, 1) == CUDA_SUCCESS);
  client.create_stream(0);
  const uint64_t stream = stream_handle(0);
  REQUIRE(client.synchronize(stream) == CUDA_SUCCESS);
  client.fake.hold(0);
  memory.bytes()[0] = std::byte{1};
  CHECK(client.copy(client.line(1, 0, 1, true, stream)) == CUDA_SUCCESS);
  memory.bytes()[0] = std::byte{2};
  client.fake.let_go(0);
  CHECK(client.synchronize(stream) == CUDA_SUCCESS);
  CHECK(client.copy(client.line(1, 10, 1, false, stream)) == CUDA_SUCCESS);
  CHECK(client.synchronize(stream) == CUDA_SUCCESS);
  CHECK(memory.bytes()[10] == std::byte{2});
}

TEST_CASE("rejects memory that could fault during a device access") {
  Memory unsealed(kSize, 0);
  Memory read_only(kSize, F_SEAL_SHRINK | F_SEAL_FUTURE_WRITE);
  Memory sparse(kSize, F_SEAL_SHRINK, false);
  Memory good;
  Sharing client;
  CHECK(client.share(unsealed, 1) == CUDA_ERROR_INVALID_VALUE);
  CHECK(client.share(read_only, 2) != CUDA_SUCCESS);
  CHECK(client.share(sparse, 3) == CUDA_ERROR_INVALID_VALUE);
  CHECK(client.share(good, 4, kSize + 4096) == CUDA_ERROR_INVALID_VALUE);
  CHECK(client.share(good, 4, kSize - 4096) == CUDA_ERROR_INVALID_VALUE);
  CHECK(client.share(good, 4, 0) == CUDA_ERROR_INVALID_VALUE);
  client.give_descriptor(::open("/dev/null", O_RDWR | O_CLOEXEC));
  CHECK(client.ask(Command::share_host_memory, bytes_of(wire::ShareHostMemory{5, 0})) ==
        CUDA_ERROR_INVALID_VALUE);
  CHECK(client.fake.registered_count() == 0);
  CHECK(client.share(good, 4) == CUDA_SUCCESS);
  CHECK(client.share(good, 4) == CUDA_ERROR_INVALID_VALUE);
}

TEST_CASE("maps shared memory at the program's address if it is free") {
  Memory memory;
  Sharing client;
  void* const free = ::mmap(nullptr, 16 * kSize, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  REQUIRE(free != MAP_FAILED);
  ::munmap(free, 16 * kSize);
  const uint64_t wished = reinterpret_cast<uintptr_t>(free) + 4 * kSize;  // this process is also the worker
  const auto share_at = [&](uint64_t id, uint64_t address) {
    client.give_descriptor(memory.copy());
    return client
        .reply(client.send(Command::share_host_memory, bytes_of(wire::ShareHostMemory{id, kSize, address}),
                           true))
        .as<wire::SharedHostMemoryAt>();
  };
  const auto first = share_at(1, wished);
  CHECK((first.memory == 1 && first.device == wished));
  memory.bytes()[9] = std::byte{5};
  CHECK(*reinterpret_cast<std::byte*>(wished + 9) == std::byte{5});
  // Existing mappings are kept: the memory is mapped elsewhere.
  std::vector<std::byte> own(kSize, std::byte{8});
  for (const uint64_t address :
       {wished, wished - 4096, reinterpret_cast<uintptr_t>(own.data()) / 4096 * 4096, uint64_t{4096},
        wished + 1, (uint64_t{1} << 47) - 4096, ~uint64_t{0} - 4095}) {
    const auto other = share_at(address, address);
    CHECK(other.memory == address);
    CHECK(other.device != address);
  }
  CHECK(own == std::vector<std::byte>(kSize, std::byte{8}));
}

TEST_CASE("confines copies to the shared memory and the session's device memory") {
  Memory memory;
  Sharing client;
  REQUIRE(client.share(memory, 1) == CUDA_SUCCESS);
  const bool up = GENERATE(true, false);
  const uint64_t here = client.address(0);
  const uint32_t way = up ? 1 : 0;
  constexpr uint64_t kMost = ~uint64_t{0};
  CHECK(client.copy(client.line(2, 0, 1, up)) == CUDA_ERROR_INVALID_VALUE);
  CHECK(client.copy(client.line(1, kSize, 1, up)) == CUDA_ERROR_INVALID_VALUE);
  CHECK(client.copy(client.line(1, kMost, 2, up)) == CUDA_ERROR_INVALID_VALUE);
  CHECK(client.copy(client.line(1, 1, kSize, up)) == CUDA_ERROR_INVALID_VALUE);
  CHECK(client.copy(client.line(1, 0, kMost, up)) == CUDA_ERROR_INVALID_VALUE);
  CHECK(client.copy({0, here, kMost / 2, 1, 0, 16, 8, 3, way, 0}) == CUDA_ERROR_INVALID_VALUE);
  CHECK(client.copy({0, here, 16, 1, 0, kMost / 2, 8, 3, way, 0}) == CUDA_ERROR_INVALID_VALUE);
  CHECK(client.copy({0, here, 16, 1, 0, 16, 8, kMost, way, 0}) == CUDA_ERROR_INVALID_VALUE);
  CHECK(client.copy({0, here, 4, 1, 0, 16, 8, 2, way, 0}) == CUDA_ERROR_INVALID_VALUE);
  CHECK(client.copy({0, 4096, 8, 1, 0, 8, 8, 1, way, 0}) == CUDA_ERROR_INVALID_VALUE);
  CHECK(client.copy({12345, here, 8, 1, 0, 8, 8, 1, way, 0}) == CUDA_ERROR_INVALID_HANDLE);
  CHECK(client.copy({0, here, 8, 1, 0, 8, 0, 0, way, 0}) == CUDA_SUCCESS);
  CHECK(client.copy(client.line(1, 0, kSize, up)) == CUDA_SUCCESS);
  client.send(Command::copy_shared, bytes_of(wire::CopyShared{0, here, 8, 1, 0, 8, 8, 1, 2, 0}));
  CHECK(client.finish() == 1);
  CHECK(client.end_reason.find("malformed") != std::string::npos);
}

TEST_CASE("releases memory after earlier stream work without delaying other commands") {
  Memory memory;
  Sharing client;
  REQUIRE(client.share(memory, 1) == CUDA_SUCCESS);
  client.create_stream(0);
  REQUIRE(client.synchronize(stream_handle(0)) == CUDA_SUCCESS);
  client.fake.hold(0);
  CHECK(client.copy(client.line(1, 0, kSize, true, stream_handle(0))) == CUDA_SUCCESS);
  CHECK(client.ask(Command::release_host_memory, bytes_of(wire::ReleaseHostMemory{1})) == CUDA_SUCCESS);
  CHECK(client.ask(Command::release_host_memory, bytes_of(wire::ReleaseHostMemory{1})) == CUDA_SUCCESS);
  CHECK(client.copy(client.line(1, 0, 1, true)) == CUDA_ERROR_INVALID_VALUE);
  CHECK(client.fake.registered_count() == 1);
  client.fake.let_go(0);
  CHECK(eventually([&] { return client.fake.registered_count() == 0; }));
}

TEST_CASE("a session's end and a context's leave nothing registered") {
  Memory memory;
  Sharing client;
  REQUIRE(client.share(memory, 1) == CUDA_SUCCESS);
  REQUIRE(client.share(memory, 2) == CUDA_SUCCESS);
  client.send(Command::release_host_memory, bytes_of(wire::ReleaseHostMemory{2}));
  if (GENERATE(true, false)) {
    CHECK(client.ask(Command::reset_primary_context, bytes_of(wire::PrimaryContext{kContext, 0, 0})) ==
          CUDA_SUCCESS);
    CHECK(client.fake.registered_count() == 0);
  }
  client.finish();
  CHECK(client.fake.registered_count() == 0);
}

TEST_CASE("rejects shared memory of another context") {
  Memory memory;
  Sharing client;
  REQUIRE(client.share(memory, 1) == CUDA_SUCCESS);
  constexpr uint64_t kOther = cuda::make_handle(cuda::Kind::context, 1, 2);
  client.send(Command::create_context, bytes_of(wire::CreateContext{kOther, 0, 0}), false, 0);
  const uint64_t copy = client.send(Command::copy_shared, bytes_of(client.line(1, 0, 8, true)), true, kOther);
  CHECK(client.result(copy) == CUDA_ERROR_INVALID_VALUE);
}

TEST_CASE("limits the number of shared memory blocks") {
  Memory memory(4096);
  Sharing client;
  for (uint64_t id = 1; id <= worker::kMaxSharedHostMemory; ++id)
    REQUIRE(client.share(memory, id, 4096) == CUDA_SUCCESS);
  CHECK(client.share(memory, 9999, 4096) == CUDA_ERROR_OUT_OF_MEMORY);
}

TEST_CASE("a command without its descriptor ends the session; without shared memory it is refused") {
  {
    Sharing client;
    client.send(Command::share_host_memory, bytes_of(wire::ShareHostMemory{1, kSize}), true);
    CHECK(client.finish() == 1);
    CHECK(client.end_reason.find("descriptor") != std::string::npos);
  }
  TestClient client;
  client.retain();
  CHECK(client.ask(Command::share_host_memory, bytes_of(wire::ShareHostMemory{1, kSize})) ==
        CUDA_ERROR_NOT_SUPPORTED);
}
