#include "server/quota/partitions.h"

#include "tests/support/catch.h"

using namespace gpupool;
using quota::Groups;
using quota::Partitions;
using PerGpu = Partitions::PerGpu;

namespace {

// 16 groups of 8 and 4 more multiprocessors, as a large GPU has them.
constexpr Partitions::Gpu kLarge{16, 8, 132};
constexpr Partitions::Gpu kSmall{2, 1, 2};
constexpr Partitions::Gpu kWhole{0, 0, 80};  // cannot be divided

Partitions of(std::vector<Partitions::Gpu> gpus, std::map<std::string, uint32_t> percents) {
  Partitions partitions;
  partitions.set_gpus(std::move(gpus));
  partitions.set_tenants(std::move(percents));
  return partitions;
}

}  // namespace

TEST_CASE("percentages become whole groups, the nearest number of them and one at least") {
  CHECK(kLarge.groups_for(25) == 4);   // 33 multiprocessors
  CHECK(kLarge.groups_for(50) == 8);   // 66
  CHECK(kLarge.groups_for(10) == 2);   // 13.2
  CHECK(kLarge.groups_for(1) == 1);
  CHECK(kLarge.groups_for(100) == 16);
  CHECK(kSmall.groups_for(25) == 1);
  CHECK(kSmall.groups_for(74) == 1);
  CHECK(kSmall.groups_for(75) == 2);
  CHECK(kWhole.groups_for(50) == 0);
  CHECK(kLarge.count(0b11) == 16);
  CHECK(kLarge.count(Groups{1} << 15) == 12);  // the last one has what is left over
  CHECK(kLarge.count(kLarge.all()) == 132);
  CHECK(Partitions::Gpu{64, 2, 128}.all() == ~Groups{0});
}

TEST_CASE("partitions do not overlap, and everybody else shares what is left") {
  Partitions partitions = of({kLarge, kSmall}, {{"a", 25}, {"b", 50}});
  CHECK(*partitions.take(1, "a") == PerGpu{0x000f, 0b01});
  CHECK(*partitions.take(2, "a") == PerGpu{0x000f, 0b01});  // the same for all sessions of a tenant
  CHECK(*partitions.take(3, "b") == PerGpu{0x0ff0, 0b10});
  const auto rest = partitions.take(4, "c");
  REQUIRE(!rest);  // nothing of the small one is left
  CHECK(rest.error().message == "partitions of other tenants have all multiprocessors of GPU 1");
  partitions.set_tenants({{"a", 25}});
  partitions.release(3);
  CHECK(*partitions.take(4, "c") == PerGpu{0xfff0, 0b10});
}

TEST_CASE("without partitions GPUs are whole, also those that could not be divided") {
  Partitions partitions = of({kLarge, kWhole}, {});
  CHECK(partitions.take(1, "a")->empty());
  partitions.set_tenants({{"b", 50}});
  const auto refused = partitions.take(2, "b");
  REQUIRE(!refused);
  CHECK(refused.error().message == "the tenant has a partition, and GPU 1 cannot be divided: its driver offers no green contexts");
  CHECK(partitions.why_not("b") == refused.error().message);
  // Nobody is kept away from what nobody has.
  CHECK(*partitions.take(3, "a") == PerGpu{0, 0});
}

TEST_CASE("a partition that does not fit has no place until there is room") {
  Partitions partitions = of({kSmall}, {{"a", 25}, {"b", 25}, {"c", 25}});  // each rounded up to one of two
  CHECK(partitions.place("b") == PerGpu{0b10});
  CHECK(partitions.place("c").empty());
  const auto refused = partitions.take(1, "c");
  REQUIRE(!refused);
  CHECK(refused.error().message ==
        "the tenant has a partition of 1 multiprocessors, and only 0 of the 2 of GPU 0 are in no other partition or session of one");
  partitions.set_tenants({{"b", 25}, {"c", 25}});
  CHECK(*partitions.take(1, "c") == PerGpu{0b01});
  CHECK(partitions.place("b") == PerGpu{0b10});  // stayed where it was
  CHECK(partitions.why_not("c").empty());
}

TEST_CASE("a changed partition is for new sessions, and not another tenant's before the old ones end") {
  Partitions partitions = of({kLarge}, {{"a", 50}});
  CHECK(*partitions.take(1, "a") == PerGpu{0x00ff});
  partitions.set_tenants({{"a", 25}, {"b", 75}});
  CHECK(*partitions.take(2, "a") == PerGpu{0x000f});
  REQUIRE(!partitions.take(3, "b"));  // 12 groups, and a session of a's still has 8
  CHECK(*partitions.take(4, "c") == PerGpu{0xff00});
  partitions.release(1);
  CHECK(*partitions.take(3, "b") == PerGpu{0xfff0});
  // Gone from the configuration, at work all the same.
  partitions.set_tenants({{"a", 25}});
  CHECK(!partitions.take(5, "c"));
  partitions.release(3);
  CHECK(*partitions.take(5, "c") == PerGpu{0xfff0});
}

TEST_CASE("before the GPUs are known there are no places") {
  Partitions partitions;
  partitions.set_tenants({{"a", 50}});
  CHECK(!partitions.take(1, "a"));
  partitions.set_gpus({kSmall});
  CHECK(*partitions.take(1, "a") == PerGpu{0b01});
}
