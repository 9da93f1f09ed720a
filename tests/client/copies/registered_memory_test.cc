// Tests the client's registrations of pinned memory with a DirectMemory that has limits.
#include "client/copies/registered_memory.h"

#include "tests/support/catch.h"
#include "tests/support/fake_direct_memory.h"

using namespace gpupool;
using namespace gpupool::client;
using testing::FakeDirectMemory;

namespace {

HostAllocation allocation(uint64_t id, uint64_t bytes, uint64_t address = 0x10000) {
  HostAllocation made;
  made.address = address;
  made.size = bytes;
  made.id = id;
  return made;
}

struct Fixture {
  explicit Fixture(const RegisteredMemory::Limits& limits = {}) { registered.start(&device, limits); }
  uint32_t key_of(uint64_t id, uint64_t bytes = 4096) {
    const auto lease = registered.use(allocation(id, bytes));
    return lease ? lease->key : 0;
  }
  FakeDirectMemory device;
  RegisteredMemory registered;
};

}  // namespace

TEST_CASE("registers an allocation once until it is forgotten") {
  Fixture fixture;
  const uint32_t key = fixture.key_of(1);
  CHECK(key != 0);
  CHECK(fixture.key_of(1) == key);
  CHECK(fixture.device.regions() == 1);
  fixture.registered.forget(1);
  CHECK(fixture.device.regions() == 0);
  CHECK(fixture.key_of(2) != key);  // at the same address
  fixture.registered.forget(1);     // already removed
  CHECK(fixture.device.regions() == 1);
}

TEST_CASE("keeps memory registered until the copies that use it end") {
  Fixture fixture;
  auto lease = fixture.registered.use(allocation(1, 4096));
  REQUIRE(lease);
  auto again = lease;
  fixture.registered.forget(1);
  lease.reset();
  CHECK(fixture.device.regions() == 1);
  again.reset();
  CHECK(fixture.device.regions() == 0);
  CHECK_FALSE(fixture.device.misused());
}

TEST_CASE("evicts the least recently used registration that no copy uses") {
  Fixture fixture({.allocations = 3, .bytes = 100 * 4096});
  const auto busy = fixture.registered.use(allocation(1, 4096));
  const uint32_t second = fixture.key_of(2), third = fixture.key_of(3);
  CHECK(fixture.key_of(2) == second);
  CHECK(fixture.key_of(4) != 0);
  CHECK(fixture.registered.size() == 3);
  CHECK(fixture.device.regions() == 3);
  CHECK(fixture.key_of(1) == busy->key);
  CHECK(fixture.key_of(2) == second);
  CHECK(fixture.key_of(3) != third);  // it had been evicted
  const auto other = fixture.registered.use(allocation(2, 4096)),
             another = fixture.registered.use(allocation(3, 4096));
  CHECK(fixture.key_of(5) == 0);  // all are in use
  CHECK(fixture.device.regions() == 3);
}

TEST_CASE("limits the registered bytes") {
  Fixture fixture({.allocations = 100, .bytes = 10 * 4096});
  CHECK(fixture.key_of(1, 11 * 4096) == 0);
  for (uint64_t id = 1; id <= 20; ++id) CHECK(fixture.key_of(id, 3 * 4096) != 0);
  CHECK(fixture.device.registered_bytes() == 9 * 4096);
  CHECK(fixture.key_of(30, 10 * 4096) != 0);
  CHECK(fixture.device.registered_bytes() == 10 * 4096);
}

TEST_CASE("evicts registrations if the system refuses more and then refuses until one is removed") {
  Fixture fixture;
  fixture.device.set_limit(2 * 4096);
  CHECK(fixture.key_of(1) != 0);
  CHECK(fixture.key_of(2) != 0);
  CHECK(fixture.key_of(3) != 0);
  CHECK(fixture.device.regions() == 2);
  const auto busy = fixture.registered.use(allocation(3, 4096)),
             too = fixture.registered.use(allocation(2, 4096));
  CHECK(fixture.key_of(4) == 0);
  fixture.device.set_limit(100 * 4096);
  CHECK(fixture.key_of(4) == 0);  // known to fail: not tried again
  fixture.registered.forget(3);
  CHECK(fixture.key_of(4) != 0);
}

TEST_CASE("registers nothing without an RDMA device") {
  RegisteredMemory registered;
  CHECK_FALSE(registered.usable());
  CHECK_FALSE(registered.use(allocation(1, 4096)));
  registered.forget(1);
}
