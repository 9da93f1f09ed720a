// Tests memory that host code and kernels use at the same address: which side holds a block and when data
// moves. Uses real pages and faults, and a device that copies at once. The memory is a module's variable of
// three pages.
#include "client/memory/mirrors.h"

#include <sys/mman.h>

#include "tests/client/fake_device.h"
#include "tests/support/catch.h"

namespace gpupool::client {
bool is_blocking(uint64_t) {
  return true;
}  // client/api/stream.cc
}  // namespace gpupool::client

using namespace gpupool;
using namespace gpupool::client;
using gpupool::client::test::fake_device;
using gpupool::client::test::make_context;
using gpupool::client::test::no_session;

namespace {

const CUstream kStream = cuda::handle_from_bits<CUstream>(cuda::make_handle(Kind::stream, 1, 1));

struct Variable {
  Variable() : context(make_context()), bytes(3 * HostPages::page()) {
    void* const there = mmap(nullptr, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    REQUIRE(there != MAP_FAILED);
    munmap(there, bytes);
    address = reinterpret_cast<uintptr_t>(there);
    test::reset(address, bytes);
    std::fill(fake_device().memory.begin(), fake_device().memory.end(), std::byte{'d'});
    REQUIRE(mirrors().add_variable(no_session(), &context, address, bytes) == CUDA_SUCCESS);
    page_faults::reinstall();  // each test case replaces the signal handler
  }
  ~Variable() {
    mirrors().forget_context(context);  // else the next test would wait for this one's work
    mirrors().remove(address);
  }

  volatile char& operator[](uint64_t offset) const {
    return *reinterpret_cast<volatile char*>(static_cast<uintptr_t>(address + offset));
  }
  char device(uint64_t offset) const { return static_cast<char>(fake_device().at(address + offset)); }
  // Device work that may use the memory; writes this byte if it is not 0.
  void work(char written = 0) {
    CUresult result = CUDA_ERROR_UNKNOWN;
    const auto lock = mirrors().before_work(context, kStream, &result);
    CHECK(result == CUDA_SUCCESS);
    if (written) fake_device().at(address) = static_cast<std::byte>(written);
  }

  Context& context;
  const uint64_t bytes;
  uint64_t address = 0;
};

}  // namespace

TEST_CASE("mirrored memory: the first access fetches it from the device once") {
  Variable variable;
  CHECK(fake_device().copies.empty());
  CHECK(variable[0] == 'd');
  CHECK(variable[variable.bytes - 1] == 'd');
  CHECK(fake_device().fetched() == 1);
  CHECK(fake_device().copies[0].bytes == variable.bytes);
}

TEST_CASE("mirrored memory: sends written blocks once before the next work") {
  Variable variable;
  variable[5000] = 'p';
  CHECK(variable.device(5000) == 'd');
  variable.work();
  CHECK(variable.device(5000) == 'p');
  CHECK(variable.device(4999) == 'd');
  const size_t sent = fake_device().sent();
  CHECK(sent > 0);
  variable.work();
  CHECK(fake_device().sent() == sent);
}

TEST_CASE("mirrored memory: does not send blocks that were only read") {
  Variable variable;
  CHECK(variable[0] == 'd');
  variable.work();
  CHECK(fake_device().sent() == 0);
}

TEST_CASE("mirrored memory: the first access after work waits for it and sees its results") {
  Variable variable;
  CHECK(variable[0] == 'd');
  variable.work('k');
  CHECK(fake_device().waits == 0);
  CHECK(variable[0] == 'k');
  CHECK(fake_device().waits == 1);
  variable[1] = 'p';  // no work is running any more
  CHECK(fake_device().waits == 1);
}

TEST_CASE("mirrored memory: does not wait again for completed work") {
  Variable variable;
  variable.work('k');
  Mirrors::note_completed(variable.context, variable.context.last_mirror_use.load());
  CHECK(variable[0] == 'k');
  CHECK(fake_device().waits == 0);
}

TEST_CASE("mirrored memory: stays readable without another fetch after a copy that reads it") {
  Variable variable;
  variable[0] = 'p';
  const size_t fetched = fake_device().fetched();
  CHECK(mirrors().before_use(variable.context, variable.address, 1, nullptr) == CUDA_SUCCESS);
  CHECK(variable.device(0) == 'p');
  CHECK(variable[0] == 'p');
  CHECK(fake_device().fetched() == fetched);
  variable[0] = 'q';
  variable.work();
  CHECK(variable.device(0) == 'q');
}

TEST_CASE("mirrored memory: a copy that writes it makes the device copy current") {
  Variable variable;
  variable[1] = 'p';
  {
    Mirrors::PendingWrite use;
    CHECK(mirrors().before_use(variable.context, variable.address, 1, &use) == CUDA_SUCCESS);
  }
  CHECK(variable.device(1) == 'p');
  fake_device().at(variable.address) = std::byte{'c'};
  CHECK(variable[0] == 'c');
  CHECK(variable[1] == 'p');
}

TEST_CASE("mirrored memory: work of another server does not move it") {
  Variable variable;
  variable[0] = 'p';
  CUresult result = CUDA_ERROR_UNKNOWN;
  { const auto lock = mirrors().before_work(make_context(1), kStream, &result); }
  CHECK(result == CUDA_SUCCESS);
  CHECK(variable.device(0) == 'd');
}

TEST_CASE("mirrored memory: prefetched to the host is writable without a fault and sent before work") {
  Variable variable;
  variable.work('k');
  CHECK(mirrors().fetch_to_host(variable.context, kStream, variable.address, variable.bytes) == CUDA_SUCCESS);
  CHECK(fake_device().waits == 2);  // for the stream, and for other work that may use the memory
  CHECK(variable[0] == 'k');
  variable[0] = 'p';
  CHECK(fake_device().fetched() == 1);
  variable.work();
  CHECK(variable.device(0) == 'p');
}

TEST_CASE("mirrored memory: is recognised by its addresses only") {
  Variable variable;
  const auto found = mirrors().find(variable.address + variable.bytes - 1);
  REQUIRE(found);
  CHECK(found->address == variable.address);
  CHECK(found->bytes == variable.bytes);
  CHECK(found->session == &no_session());
  CHECK(found->managed);
  CHECK_FALSE(mirrors().find(variable.address + variable.bytes));
  CHECK(mirrors().overlaps(variable.address - 1, 2));
  CHECK_FALSE(mirrors().overlaps(variable.address - 1, 1));
  CHECK_FALSE(mirrors().overlaps(variable.address + variable.bytes, 1));
  mirrors().remove(variable.address);
  CHECK_FALSE(mirrors().find(variable.address));
}

TEST_CASE("mirrored memory: after a context reset a variable has the new context's contents") {
  Variable variable;
  variable[0] = 'p';
  mirrors().forget_context(variable.context);
  std::fill(fake_device().memory.begin(), fake_device().memory.end(), std::byte{'n'});
  CHECK(variable[0] == 'n');
}

TEST_CASE("mirrored memory: work fails with the error of the copy to the device") {
  Variable variable;
  variable[0] = 'p';
  fake_device().result = CUDA_ERROR_OUT_OF_MEMORY;
  CUresult result = CUDA_SUCCESS;
  { const auto lock = mirrors().before_work(variable.context, kStream, &result); }
  CHECK(result == CUDA_ERROR_OUT_OF_MEMORY);
}
