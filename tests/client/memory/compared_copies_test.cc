// Tests registered host memory with a device copy: which bytes are sent before work and fetched after it.
#include "client/memory/compared_copies.h"

#include <string>

#include "tests/client/fake_device.h"
#include "tests/support/catch.h"

using namespace gpupool;
using namespace gpupool::client;
using gpupool::client::test::fake_device;
using gpupool::client::test::make_context;

namespace {

constexpr uint64_t kDevice = 0x7000000000;
const CUstream kStream = cuda::handle_from_bits<CUstream>(cuda::make_handle(Kind::stream, 1, 1));
const CUstream kOther = cuda::handle_from_bits<CUstream>(cuda::make_handle(Kind::stream, 1, 2));

// 16 KiB of the program's memory with a copy on the device.
struct Registered {
  explicit Registered(bool read_only = false) : host(16384, std::byte{'.'}), context(make_context()) {
    test::reset(kDevice, host.size());
    REQUIRE(copies.add(context, host.data(), host.size(), read_only, kDevice) == CUDA_SUCCESS);
    fake_device().copies.clear();
  }
  char device(size_t at) { return static_cast<char>(fake_device().at(kDevice + at)); }
  void device_writes(size_t at, char value) {
    fake_device().at(kDevice + at) = static_cast<std::byte>(value);
  }
  void program_writes(size_t at, char value) { host[at] = static_cast<std::byte>(value); }
  char program(size_t at) const { return static_cast<char>(host[at]); }
  void work(CUstream stream = kStream) { CHECK(copies.before_work(context, stream) == CUDA_SUCCESS); }
  void wait(CUstream stream = kStream) {
    CHECK(copies.after_stream(context, stream, copies.last_use()) == CUDA_SUCCESS);
  }

  std::vector<std::byte> host;
  Context& context;
  ComparedCopies copies;
};

}  // namespace

TEST_CASE("compared copies: adding one sends the program's current contents") {
  Registered memory;
  CHECK(memory.copies.any());
  CHECK(memory.device(0) == '.');
  CHECK(memory.device(16383) == '.');
}

TEST_CASE("compared copies: send only the program's changes before work") {
  Registered memory;
  memory.work();
  CHECK(fake_device().copies.empty());
  memory.wait();
  fake_device().copies.clear();
  memory.program_writes(100, 'a');
  memory.program_writes(12'000, 'b');
  memory.work();
  CHECK(memory.device(100) == 'a');
  CHECK(memory.device(12'000) == 'b');
  REQUIRE(fake_device().sent() == 2);
  CHECK(fake_device().copies[0].bytes == 1);
  CHECK(fake_device().copies[0].order == CopyOrder::before_all);
}

TEST_CASE("compared copies: send nearby changes together") {
  Registered memory;
  memory.program_writes(100, 'a');
  memory.program_writes(200, 'b');
  memory.work();
  REQUIRE(fake_device().sent() == 1);
  CHECK(fake_device().copies[0].at == kDevice + 100);
  CHECK(fake_device().copies[0].bytes == 101);
}

TEST_CASE("compared copies: while work may write send only bytes that the program changed") {
  Registered memory;
  memory.work();  // may write from now on
  memory.device_writes(150, 'D');
  memory.program_writes(100, 'a');
  memory.program_writes(200, 'b');
  memory.work();
  CHECK(fake_device().sent() == 2);
  CHECK(memory.device(150) == 'D');
}

TEST_CASE("compared copies: a wait fetches the device's writes and keeps the program's") {
  Registered memory;
  memory.work();
  CHECK(memory.copies.device_may_be_newer(reinterpret_cast<uintptr_t>(memory.host.data()), 1));
  memory.device_writes(10, 'D');
  memory.program_writes(11, 'p');
  memory.wait();
  CHECK(memory.program(10) == 'D');
  CHECK(memory.program(11) == 'p');
  CHECK_FALSE(memory.copies.device_may_be_newer(reinterpret_cast<uintptr_t>(memory.host.data()), 16384));
  memory.work();
  CHECK(memory.device(11) == 'p');
}

TEST_CASE("compared copies: waiting for one stream does not fetch copies that other streams may write") {
  Registered memory;
  memory.work(kStream);
  memory.work(kOther);
  memory.wait(kStream);
  CHECK(memory.copies.device_may_be_newer(reinterpret_cast<uintptr_t>(memory.host.data()), 1));
  memory.wait(kOther);
  CHECK_FALSE(memory.copies.device_may_be_newer(reinterpret_cast<uintptr_t>(memory.host.data()), 1));
}

TEST_CASE("compared copies: a wait does not cover work queued after it began") {
  Registered memory;
  memory.work();
  const uint64_t before = memory.copies.last_use();
  memory.work();
  CHECK(memory.copies.after_stream(memory.context, kStream, before) == CUDA_SUCCESS);
  CHECK(memory.copies.device_may_be_newer(reinterpret_cast<uintptr_t>(memory.host.data()), 1));
  CHECK(memory.copies.after_context(memory.context, memory.copies.last_use()) == CUDA_SUCCESS);
  CHECK_FALSE(memory.copies.device_may_be_newer(reinterpret_cast<uintptr_t>(memory.host.data()), 1));
}

TEST_CASE("compared copies: fetch nothing if no work was queued") {
  Registered memory;
  memory.wait();
  CHECK(fake_device().fetched() == 0);
}

TEST_CASE("compared copies: never fetch memory that the device only reads") {
  Registered memory(true);
  memory.work();
  CHECK_FALSE(memory.copies.device_may_be_newer(reinterpret_cast<uintptr_t>(memory.host.data()), 1));
  memory.wait();
  CHECK(fake_device().fetched() == 0);
}

TEST_CASE("compared copies: ignore copies elsewhere on the device") {
  Registered memory;
  memory.program_writes(0, 'a');
  CHECK(memory.copies.before_use(memory.context, kStream, kDevice + 16384, 100) == CUDA_SUCCESS);
  CHECK(memory.device(0) == '.');
  CHECK(memory.copies.before_use(memory.context, kStream, kDevice + 16383, 100) == CUDA_SUCCESS);
  CHECK(memory.device(0) == 'a');
}

TEST_CASE("compared copies: ignore work of another server") {
  Registered memory;
  memory.program_writes(0, 'a');
  CHECK(memory.copies.before_work(make_context(1), kStream) == CUDA_SUCCESS);
  CHECK(memory.device(0) == '.');
}

TEST_CASE("compared copies: translate device addresses to host addresses") {
  Registered memory;
  const auto host = reinterpret_cast<uintptr_t>(memory.host.data());
  CHECK(memory.copies.host_of(kDevice + 16383) == host + 16383);
  CHECK_FALSE(memory.copies.host_of(kDevice + 16384));
  CHECK_FALSE(memory.copies.host_of(kDevice - 1));
}

TEST_CASE("compared copies: end when removed or with their context") {
  Registered memory;
  SECTION("removed") {
    CHECK(memory.copies.remove(memory.host.data() + 1) == 0);
    CHECK(memory.copies.remove(memory.host.data()) == kDevice);
    CHECK(memory.copies.remove(memory.host.data()) == 0);
  }
  SECTION("with their context") {
    CHECK(memory.copies.forget_context(make_context()).empty());
    CHECK(memory.copies.forget_context(memory.context) ==
          std::vector<uint64_t>{reinterpret_cast<uintptr_t>(memory.host.data())});
  }
  CHECK_FALSE(memory.copies.any());
  memory.program_writes(0, 'a');
  memory.work();
  CHECK(memory.device(0) == '.');
}

TEST_CASE("compared copies: return a copy's error to the caller") {
  Registered memory;
  memory.program_writes(0, 'a');
  fake_device().result = CUDA_ERROR_OUT_OF_MEMORY;
  CHECK(memory.copies.before_work(memory.context, kStream) == CUDA_ERROR_OUT_OF_MEMORY);
  std::vector<std::byte> more(10);
  CHECK(memory.copies.add(memory.context, more.data(), more.size(), false, kDevice + 4096) ==
        CUDA_ERROR_OUT_OF_MEMORY);
  CHECK(memory.copies.remove(more.data()) == 0);
}
