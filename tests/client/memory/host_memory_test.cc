// Tests pinned host memory: allocations and their places, registered memory, and what the server is told.
#include "client/memory/host_memory.h"

#include "protocol/wire/copies.h"
#include "tests/client/fake_session.h"
#include "tests/support/catch.h"

using namespace gpupool;
using namespace gpupool::client;
using namespace gpupool::client::test;
using namespace gpupool::testing;
using wire::Command;

namespace {

struct Pinned {
  FakeWorker worker;
  Session& session = open_session(worker);
  Context& context = make_context(session);
  HostMemory memory;

  uint64_t allocate(uint64_t bytes) {
    void* const got = memory.allocate(bytes, 3, context);
    REQUIRE(got);
    return reinterpret_cast<uintptr_t>(got);
  }
  bool in_range(uint64_t address) const {
    const AddressSpace& addresses = session.addresses();
    return address - addresses.base() < addresses.size();
  }
};

}  // namespace

TEST_CASE("host memory: is writable, zero, and at an address that a kernel can be given") {
  Pinned pinned;
  const uint64_t address = pinned.allocate(10'000);
  CHECK(pinned.in_range(address));
  auto* const bytes = static_cast<unsigned char*>(host_pointer(address));
  CHECK(bytes[0] == 0);
  bytes[9'999] = 1;
  const auto found = pinned.memory.find(address + 9'999);
  REQUIRE(found);
  CHECK(found->address == address);
  CHECK(found->size == 10'000);
  CHECK(found->flags == 3);
  CHECK(found->device == address);
  CHECK(found->context == pinned.context.handle);
  CHECK_FALSE(found->registered);
  CHECK_FALSE(pinned.memory.find(address + 10'000));
  CHECK_FALSE(pinned.memory.find(address - 1));
  CHECK(pinned.memory.free(host_pointer(address)));
}

TEST_CASE("host memory: stays usable without an address for kernels if the range is full") {
  Pinned pinned;
  const uint64_t all = pinned.session.addresses().size();
  REQUIRE(pinned.session.addresses().reserve_host(all));
  const uint64_t address = pinned.allocate(4096);
  CHECK_FALSE(pinned.in_range(address));
  CHECK(pinned.memory.find(address)->device == 0);
  CHECK(pinned.memory.reach(address, pinned.context) == CUDA_SUCCESS);  // nothing to do
  CHECK(pinned.worker.received().empty());
  CHECK(pinned.memory.free(host_pointer(address)));
}

TEST_CASE("host memory: rejects sizes that overflow") {
  Pinned pinned;
  CHECK(pinned.memory.allocate(UINT64_MAX, 0, pinned.context) == nullptr);
  CHECK(pinned.memory.allocate(uint64_t{1} << 62, 0, pinned.context) == nullptr);
}

TEST_CASE("host memory: only the start of an allocation can be freed, and once") {
  Pinned pinned;
  const uint64_t address = pinned.allocate(8192);
  CHECK_FALSE(pinned.memory.free(host_pointer(address + 1)));
  CHECK(pinned.memory.is_pinned(host_pointer(address + 8191), 1));
  CHECK(pinned.memory.free(host_pointer(address)));
  CHECK_FALSE(pinned.memory.free(host_pointer(address)));
  CHECK_FALSE(pinned.memory.find(address));
  CHECK(pinned.worker.received(Command::free_memory).empty());  // the server never had it
  CHECK(pinned.allocate(8192) == address);                      // the place is free again
}

TEST_CASE("host memory: a range is pinned only if one allocation has all of it") {
  Pinned pinned;
  const uint64_t address = pinned.allocate(8192);
  CHECK(pinned.memory.is_pinned(host_pointer(address), 8192));
  CHECK(pinned.memory.is_pinned(host_pointer(address + 100), 8092));
  CHECK_FALSE(pinned.memory.is_pinned(host_pointer(address), 8193));
  CHECK_FALSE(pinned.memory.is_pinned(host_pointer(address + 1), UINT64_MAX));
}

TEST_CASE("host memory: registered ranges do not overlap others and are not freed") {
  Pinned pinned;
  HostMemory& memory = pinned.memory;
  const uint64_t at = 0x10000;
  CHECK(memory.add_registered(host_pointer(at), 0x1000, 0, 1));
  CHECK_FALSE(memory.add_registered(host_pointer(at), 0x1000, 0, 1));
  CHECK_FALSE(memory.add_registered(host_pointer(at + 0xfff), 1, 0, 1));
  CHECK_FALSE(memory.add_registered(host_pointer(at - 1), 2, 0, 1));
  CHECK_FALSE(memory.add_registered(host_pointer(at - 0x1000), 0x10000, 0, 1));
  CHECK(memory.add_registered(host_pointer(at + 0x1000), 1, 0, 1));
  CHECK(memory.add_registered(host_pointer(at - 1), 1, 0, 1));
  CHECK(memory.find(at)->registered);
  CHECK_FALSE(memory.free(host_pointer(at)));
  memory.set_device(at, 0x5000);
  CHECK(memory.find(at + 5)->device == 0x5000);
  CHECK_FALSE(memory.remove_registered(host_pointer(at + 1)));
  CHECK(memory.remove_registered(host_pointer(at)));
  CHECK_FALSE(memory.remove_registered(host_pointer(at)));
  CHECK_FALSE(memory.find(at));
}

TEST_CASE("host memory: allocated memory cannot be unregistered") {
  Pinned pinned;
  const uint64_t address = pinned.allocate(4096);
  CHECK_FALSE(pinned.memory.remove_registered(host_pointer(address)));
  CHECK(pinned.memory.find(address));
}

TEST_CASE("host memory: is shared only if the server can map it") {
  Pinned pinned;
  CUresult result = CUDA_SUCCESS;
  CHECK(pinned.memory.allocate_shared(4096, 0, pinned.context, &result) == nullptr);
  CHECK(result == CUDA_SUCCESS);  // ordinary memory is used instead
  CHECK_FALSE(pinned.memory.any_shared());
  const uint64_t address = pinned.allocate(4096);
  CHECK_FALSE(pinned.memory.use_shared(host_pointer(address), 4096, pinned.context, true, false));
  CHECK_FALSE(pinned.memory.is_written(host_pointer(address)));
}

TEST_CASE("host memory: kernels of another server cannot reach it") {
  Pinned pinned;
  FakeWorker other_worker;
  Session& other = open_session(other_worker);
  const uint64_t address = pinned.allocate(4096);
  CHECK(pinned.memory.reach(address, make_context(other)) == CUDA_ERROR_NOT_SUPPORTED);
  CHECK(other_worker.received().empty());
}

TEST_CASE("host memory: returns the error of a server that does not map it, and asks again") {
  Pinned pinned;
  const uint64_t address = pinned.allocate(5000);
  SECTION("an error") {
    pinned.worker.answer(Command::map_memory, "", CUDA_ERROR_OUT_OF_MEMORY);
    CHECK(pinned.memory.reach(address + 100, pinned.context) == CUDA_ERROR_OUT_OF_MEMORY);
  }
  SECTION("a reply of the wrong size") {
    pinned.worker.answer(Command::map_memory, "short");
    CHECK(pinned.memory.reach(address + 100, pinned.context) == Session::failure());
  }
  CHECK_FALSE(pinned.memory.find(address)->reached);
  const auto asked = pinned.worker.await_command(Command::map_memory).as<wire::MapMemory>();
  CHECK(asked.address == address);
  CHECK(asked.size == pinned.session.addresses().granularity());
  (void)pinned.memory.reach(address, pinned.context);
  CHECK(pinned.worker.received(Command::map_memory).size() == 2);
}
