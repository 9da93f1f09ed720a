// Tests device addresses in a session's range: which allocations share a mapping, and when an address is
// reused.
#include "client/memory/address_space.h"

#include <sys/mman.h>

#include <algorithm>
#include <memory>

#include "client/memory/busy_addresses.h"
#include "tests/support/catch.h"
#include "tests/support/device_addresses.h"

using namespace gpupool::client;

namespace {

constexpr uint64_t kGranule = 2u << 20;
constexpr uint64_t kRange = 64 * kGranule;
constexpr uint64_t kLarge = 20u << 20;  // too large for a slab

Device* device(uintptr_t number) {
  return reinterpret_cast<Device*>(number * 64);
}  // never dereferenced
Allocation about(uintptr_t number = 1, uint64_t context = 1, bool managed = false) {
  Allocation allocation;
  allocation.device = device(number);
  allocation.context = context;
  allocation.managed = managed;
  return allocation;
}

uint64_t free_range() {
  void* const there =
      mmap(nullptr, kRange + kGranule, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  REQUIRE(there != MAP_FAILED);
  munmap(there, kRange + kGranule);
  return (reinterpret_cast<uintptr_t>(there) + kGranule - 1) / kGranule * kGranule;
}

struct Space : AddressSpace {
  Space() { REQUIRE(adopt(free_range(), kRange, kGranule)); }
  ~Space() { munmap(reinterpret_cast<void*>(static_cast<uintptr_t>(base())), size()); }
  // Allocates as cuMemAlloc does, with a successful mapping.
  Placement take(uint64_t bytes, const Allocation& whose = about()) {
    const auto place = allocate(bytes, 1, whose);
    REQUIRE(place);
    if (place->map_size != 0) mapped(*place);
    return *place;
  }
  // Frees as cuMemFree does; `sequence` is the number of the free command.
  Release give(uint64_t address, uint64_t sequence, uint64_t most_idle = kMostIdle) {
    const auto gone = release(address, most_idle);
    REQUIRE(gone);
    retire_after(*gone, sequence);
    return *gone;
  }
};

}  // namespace

TEST_CASE("refuses an invalid address range from a hostile server") {
  const uint64_t base = free_range();
  for (const uint64_t granularity :
       {uint64_t{0}, uint64_t{3}, kGranule + 1, kGranule * 3, uint64_t{1} << 63}) {
    AddressSpace space;
    CHECK_FALSE(space.adopt(base, kRange, granularity));
  }
  AddressSpace space;
  CHECK_FALSE(space.adopt(0, kRange, kGranule));  // root could map address 0
  CHECK_FALSE(space.adopt(base + 4096, kRange, kGranule));
  CHECK_FALSE(space.adopt(base, kRange - 4096, kGranule));
  REQUIRE(space.adopt(base, kRange, kGranule));
  munmap(reinterpret_cast<void*>(static_cast<uintptr_t>(base)), kRange);
}

TEST_CASE("address space: refuses a range that the process uses") {
  Space first;
  AddressSpace second;
  CHECK_FALSE(AddressSpace::is_free(first.base(), kGranule));
  CHECK_FALSE(second.adopt(first.base(), kRange, kGranule));
}

TEST_CASE("address space: small allocations share one mapping") {
  Space space;
  const auto a = space.take(1), b = space.take(513), c = space.take(512);
  CHECK(a.map_address == a.address);
  CHECK(a.map_size == kGranule);
  CHECK(b.map_size == 0);
  CHECK(b.address == a.address + 512);
  CHECK(c.address == b.address + 1024);
}

TEST_CASE("address space: a mapping is shared only once it was requested") {
  Space space;
  const auto first = space.allocate(1, 1, about());
  REQUIRE(first);
  const auto second = space.allocate(1, 1, about());
  REQUIRE(second);
  CHECK(second->map_size == kGranule);
  CHECK(second->map_address != first->map_address);
  space.give(first->address, 1);
  space.retired(1);
  const auto third = space.allocate(1, 1, about());
  REQUIRE(third);
  CHECK(third->map_size == kGranule);
}

TEST_CASE("address space: devices and contexts and managed memory do not share mappings") {
  Space space;
  space.take(1);
  CHECK(space.take(1, about(2)).map_size == kGranule);
  CHECK(space.take(1, about(1, 2)).map_size == kGranule);
  CHECK(space.take(1, about(1, 1, true)).map_size == kGranule);
  CHECK(space.take(1).map_size == 0);
}

TEST_CASE("address space: a large allocation has its own mapping of whole granules") {
  Space space;
  const auto place = space.take(kLarge + 1);
  CHECK(place.map_address == place.address);
  CHECK(place.map_size == kLarge + kGranule);
  CHECK(place.address % kGranule == 0);
}

TEST_CASE("address space: honours an alignment") {
  Space space;
  space.take(1);
  for (const uint64_t alignment : {uint64_t{4096}, 4 * kGranule}) {
    const auto place = space.allocate(kLarge, alignment, about());
    REQUIRE(place);
    CHECK(place->address % alignment == 0);
  }
}

TEST_CASE("address space: reuses an address only after the server has passed the free") {
  Space space;
  space.take(512);
  const auto freed = space.take(512);
  space.give(freed.address, 7);
  CHECK_FALSE(space.find(freed.address));
  space.retired(6);
  CHECK(space.take(512).address != freed.address);
  space.retired(7);
  CHECK(space.take(512).address == freed.address);
}

TEST_CASE("address space: freeing the last block unmaps the mapping if nothing may stay idle") {
  Space space;
  const auto a = space.take(512), b = space.take(512);
  CHECK(space.give(a.address, 1, 0).unmap_size == 0);
  const auto last = space.give(b.address, 2, 0);
  CHECK(last.address == a.map_address);
  CHECK(last.unmap_size == kGranule);
  CHECK(space.take(512).map_size == kGranule);
}

TEST_CASE("address space: keeps empty mappings for later small allocations up to a limit") {
  Space space;
  const auto a = space.take(kGranule), b = space.take(kGranule);
  CHECK(space.give(a.address, 1, kGranule).unmap_size == 0);
  CHECK(space.idle_bytes(device(1)) == kGranule);
  CHECK(space.give(b.address, 2, kGranule).unmap_size == kGranule);
  space.retired(2);
  const auto again = space.take(kGranule);
  CHECK(again.address == a.address);
  CHECK(again.map_size == 0);
  CHECK(space.idle_bytes(device(1)) == 0);
}

TEST_CASE("address space: takes back the idle mappings of one device") {
  Space space;
  const auto one = space.take(1), other = space.take(1, about(2)), used = space.take(kGranule);
  space.give(one.address, 1);
  space.give(other.address, 2);
  const auto idle = space.take_idle(device(1));
  REQUIRE(idle.size() == 1);
  CHECK(idle[0].address == one.map_address);
  CHECK(idle[0].unmap_size == kGranule);
  CHECK(space.idle_bytes(device(1)) == 0);
  CHECK(space.idle_bytes(device(2)) == kGranule);
  CHECK(space.find(used.address));
}

TEST_CASE("address space: abandoning an allocation leaves nothing behind") {
  Space space;
  for (const uint64_t bytes : {uint64_t{1}, kLarge}) {
    const auto failed = space.allocate(bytes, 1, about());
    REQUIRE(failed);
    space.abandon(failed->address);
    CHECK_FALSE(space.find(failed->address));
    const auto next = space.allocate(bytes, 1, about());
    REQUIRE(next);
    CHECK(next->address == failed->address);
    CHECK(next->map_size == failed->map_size);
    space.abandon(next->address);
  }
}

TEST_CASE("address space: a full range refuses allocations and is whole again after all frees in any order") {
  Space space;
  std::vector<uint64_t> taken;
  while (const auto place = space.allocate(kLarge, 1, about())) taken.push_back(place->address);
  CHECK(taken.size() == kRange / kLarge);
  CHECK_FALSE(space.allocate(kRange, 1, about()));
  for (const size_t i : {1, 0, 5, 3, 4, 2}) space.give(taken[i], 1);
  space.retired(1);
  CHECK(space.allocate(kRange, 1, about()));
}

TEST_CASE("address space: finds the allocation that contains an address and nothing past its end") {
  Space space;
  const auto place = space.take(700);
  const auto found = space.find(place.address + 699);
  REQUIRE(found);
  CHECK(found->address == place.address);
  CHECK(found->size == 700);
  CHECK(found->device == device(1));
  CHECK_FALSE(space.find(place.address + 700));
  CHECK_FALSE(space.find(place.address - 1));
  CHECK(space.find(space.take(1).address)->id != found->id);
}

TEST_CASE("address space: frees a live allocation by its start address only once") {
  Space space;
  const auto place = space.take(kLarge);
  CHECK_FALSE(space.release(place.address + 512));
  CHECK(space.release(place.address));
  CHECK_FALSE(space.release(place.address));
}

TEST_CASE("address space: knows memory that the driver has placed and does not free it") {
  Space space;
  Allocation variable = about();
  variable.address = 0x1000;
  variable.size = 64;
  space.add_foreign(variable);
  CHECK(space.knows(0x103f));
  CHECK_FALSE(space.knows(0x1040));
  CHECK_FALSE(space.release(0x1000));
  space.forget_foreign(0x1000);
  CHECK_FALSE(space.knows(0x1000));
}

TEST_CASE("address space: detects overlap with variables placed by another server's driver") {
  Space space;
  Allocation variable = about();
  variable.address = 0x1000;
  variable.size = 64;
  space.add_foreign(variable);
  CHECK(space.overlaps(0x1020, 4));
  CHECK(space.overlaps(0xff0, 0x11));
  CHECK_FALSE(space.overlaps(0xff0, 0x10));
  CHECK_FALSE(space.overlaps(0x1040, 64));
  CHECK(space.overlaps(space.base() + space.size() - 1, 64));
  CHECK(space.overlaps(space.base() - 1, 2));
  CHECK_FALSE(space.overlaps(space.base() - 4, 4));
}

TEST_CASE("busy addresses: cover the process's mappings with a margin") {
  const auto busy = busy_addresses();
  const auto covers = [&](const void* address) {
    const auto at = reinterpret_cast<uint64_t>(address);
    return std::any_of(busy.begin(), busy.end(),
                       [at](const auto& range) { return at - range.base < range.size; });
  };
  const auto heap = std::make_unique<int>();
  CHECK(covers(&busy));
  CHECK(covers(heap.get()));
  CHECK(covers(reinterpret_cast<const void*>(&mmap)));
  CHECK_FALSE(covers(reinterpret_cast<const void*>(gpupool::testing::kDeviceAddresses)));
  CHECK(busy.size() < 16);
}

TEST_CASE("address space: a reservation gets the requested address if it is free") {
  Space space;
  const uint64_t wished = space.base() + 8 * kGranule;
  CHECK(space.reserve(2 * kGranule, 0, wished) == wished);
  CHECK_FALSE(space.reserve(0, 0, space.base() + space.size()));
  const auto other = space.reserve(kGranule, 0, wished + kGranule);
  REQUIRE(other);
  CHECK((*other < wished || *other >= wished + 2 * kGranule));
  CHECK(space.is_reserved(wished + 1, 2 * kGranule - 1));
  CHECK_FALSE(space.is_reserved(wished + 1, 2 * kGranule));
  CHECK_FALSE(space.unreserve(wished, kGranule));
  CHECK_FALSE(space.unreserve(wished + kGranule, kGranule));
  CHECK(space.unreserve(wished, 2 * kGranule));
  CHECK_FALSE(space.is_reserved(wished, 1));
  CHECK(space.reserve(2 * kGranule, 0, wished) == wished);
}

TEST_CASE(
    "address space: host memory gets addresses at the end of the range that do not count as device memory") {
  Space space;
  CHECK_FALSE(space.has_hosts());
  const uint64_t end = space.base() + kRange;
  CHECK(space.reserve_host(kGranule + 1) == end - 2 * kGranule);
  CHECK(space.has_hosts());
  CHECK(space.host_place(end - 1) == end - 2 * kGranule);
  CHECK_FALSE(space.host_place(end - 2 * kGranule - 1));
  CHECK_FALSE(space.knows(end - 1));
  CHECK(space.knows(end - 2 * kGranule - 1));
  CHECK_FALSE(space.reserve_host(kRange));
  SECTION("free at once if nothing was mapped there") {
    space.unreserve_host(end - 2 * kGranule, 0);
    CHECK(space.reserve_host(kGranule) == end - kGranule);
  }
  SECTION("free after the server has unmapped it if something was mapped") {
    space.unreserve_host(end - 2 * kGranule, 9);
    CHECK(space.reserve_host(kGranule) == end - 3 * kGranule);
    space.retired(9);
    CHECK(space.reserve_host(kGranule) == end - kGranule);
  }
}

TEST_CASE(
    "address space: destroying a context frees its allocations and their addresses after the server has "
    "passed it") {
  Space space;
  const auto small = space.take(1), large = space.take(kLarge), other = space.take(1, about(1, 2));
  space.forget_context(1, 5);
  CHECK_FALSE(space.find(small.address));
  CHECK_FALSE(space.find(large.address));
  CHECK(space.find(other.address));
  CHECK(space.take(kLarge).address != large.address);
  CHECK(space.take(1).map_address != small.map_address);
  space.retired(5);
  CHECK(space.take(kLarge).address == small.map_address);  // merged with the free space behind it
}

TEST_CASE("address space: spans of memory pools are whole granules and reusable when returned") {
  Space space;
  const auto small = space.reserve_span(kGranule + 1, about()), large = space.reserve_span(kLarge, about());
  REQUIRE(small);
  REQUIRE(large);
  CHECK(small->map_size == 2 * kGranule);
  CHECK(large->map_size == kLarge);
  space.mapped(*small);
  space.mapped(*large);
  CHECK_FALSE(space.find(small->address));
  SECTION("a small span at once and still mapped") {
    CHECK(space.return_span(small->address, 2 * kGranule).unmap_size == 0);
    CHECK(space.idle_bytes(device(1)) == 2 * kGranule);
    CHECK(space.reserve_span(2 * kGranule, about(1, 2))->map_size != 0);  // of another context
    const auto again = space.reserve_span(2 * kGranule, about());
    REQUIRE(again);
    CHECK(again->address == small->address);
    CHECK(again->map_size == 0);
    CHECK(space.idle_bytes(device(1)) == 0);
  }
  SECTION("unmapped and large spans once the server has passed the free") {
    for (const auto& span : {*small, *large}) {
      const auto gone = space.return_span(span.address, kGranule);
      CHECK(gone.unmap_size == span.map_size);
      space.retire_after(gone, 3);
    }
    CHECK(space.reserve_span(kLarge, about())->address != large->address);
    space.retired(3);
    CHECK(space.reserve_span(2 * kGranule, about())->address == small->address);
  }
  SECTION("an abandoned span at once") {
    space.abandon_span(large->address);
    space.abandon_span(small->address);
    CHECK(space.reserve_span(kRange, about()));
  }
  SECTION("with their context") {
    space.forget_context(1, 4);
    CHECK(space.return_span(small->address, 0).unmap_size == 0);
    CHECK_FALSE(space.reserve_span(kRange, about()));
    space.retired(4);
    CHECK(space.reserve_span(kRange, about()));
  }
}

TEST_CASE("address space: finds and takes allocations of memory pools but does not release them") {
  Space space;
  const auto span = space.reserve_span(kGranule, about());
  REQUIRE(span);
  Allocation allocation = about();
  allocation.address = span->address + 512;
  allocation.size = 100;
  allocation.pool_memory = reinterpret_cast<PoolMemory*>(64);  // never dereferenced
  space.add_pooled(allocation);
  const auto found = space.find(span->address + 611);
  REQUIRE(found);
  CHECK(found->address == allocation.address);
  CHECK_FALSE(space.find(span->address + 612));
  CHECK_FALSE(space.release(allocation.address));
  CHECK_FALSE(space.take_pooled(span->address));
  CHECK(space.take_pooled(allocation.address));
  CHECK_FALSE(space.take_pooled(allocation.address));
  space.add_pooled(allocation);
  CHECK(space.find(allocation.address)->id != found->id);
}
