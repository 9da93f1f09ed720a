#include "server/quota/partitions.h"

#include "tests/support/catch.h"

using namespace gpupool;
using quota::Groups;
using quota::Partitions;
using PerGpu = Partitions::PerGpu;

namespace {

// A large GPU: 16 groups of 8 multiprocessors, and 4 more in the last group.
constexpr Partitions::Gpu kLarge{16, 8, 132};
constexpr Partitions::Gpu kSmall{2, 1, 2};
constexpr Partitions::Gpu kWhole{0, 0, 80};  // cannot be divided

Partitions::Shares each(uint32_t milli) {
  Partitions::Shares share;
  share.fill(milli);
  return share;
}

Partitions of(std::vector<Partitions::Gpu> gpus, std::map<std::string, Partitions::Shares> shares) {
  Partitions partitions;
  partitions.set_gpus(std::move(gpus));
  partitions.set_tenants(std::move(shares));
  return partitions;
}

}  // namespace

TEST_CASE("thousandths are rounded to the nearest number of groups and to one at least") {
  CHECK(kLarge.groups_for(250) == 4);  // 33 multiprocessors
  CHECK(kLarge.groups_for(500) == 8);  // 66
  CHECK(kLarge.groups_for(100) == 2);  // 13.2
  CHECK(kLarge.groups_for(10) == 1);
  CHECK(kLarge.groups_for(1000) == 16);
  CHECK(kSmall.groups_for(250) == 1);
  CHECK(kLarge.groups_for(90) == 1);  // 11.88: nearer to 8 than to 16
  CHECK(kLarge.groups_for(91) == 2);  // 12.012
  CHECK(kSmall.groups_for(749) == 1);
  CHECK(kSmall.groups_for(750) == 2);
  CHECK(kWhole.groups_for(500) == 0);
  CHECK(kLarge.count(0b11) == 16);
  CHECK(kLarge.count(Groups{1} << 15) == 12);  // the last group includes the rest
  CHECK(kLarge.count(kLarge.all()) == 132);
  CHECK(Partitions::Gpu{64, 2, 128}.all() == ~Groups{0});
}

TEST_CASE("partitions do not overlap and other tenants share the rest") {
  Partitions partitions = of({kLarge, kSmall}, {{"a", each(250)}, {"b", each(500)}});
  CHECK(*partitions.take(1, "a") == PerGpu{0x000f, 0b01});
  CHECK(*partitions.take(2, "a") == PerGpu{0x000f, 0b01});  // the same for all sessions of a tenant
  CHECK(*partitions.take(3, "b") == PerGpu{0x0ff0, 0b10});
  const auto rest = partitions.take(4, "c");
  REQUIRE(!rest);  // no group of the small GPU is left
  CHECK(rest.error().message == "no free multiprocessors: partitions of other tenants occupy GPU 1");
  partitions.set_tenants({{"a", each(250)}});
  partitions.release(3);
  CHECK(*partitions.take(4, "c") == PerGpu{0xfff0, 0b10});
}

TEST_CASE("a tenant can have partitions of different size on each GPU") {
  Partitions::Shares uneven = each(500);
  uneven[1] = 250;
  Partitions partitions = of({kLarge, kLarge}, {{"a", uneven}, {"b", each(500)}});
  CHECK(*partitions.take(1, "a") == PerGpu{0x00ff, 0x000f});
  CHECK(*partitions.take(2, "b") == PerGpu{0xff00, 0x0ff0});
  uneven[1] = 500;
  partitions.set_tenants({{"a", uneven}, {"b", each(500)}});
  partitions.release(1);
  CHECK(*partitions.take(3, "a") == PerGpu{0x00ff, 0xf00f});
}

TEST_CASE("GPUs are whole without partitions even if they cannot be partitioned") {
  Partitions partitions = of({kLarge, kWhole}, {});
  CHECK(partitions.take(1, "a")->empty());
  partitions.set_tenants({{"b", each(500)}});
  const auto refused = partitions.take(2, "b");
  REQUIRE(!refused);
  CHECK(refused.error().message ==
        "cannot place the tenant's partition: GPU 1 cannot be partitioned (its driver does not support green "
        "contexts)");
  CHECK(partitions.unplaced_reason("b") == refused.error().message);
  // A partition that cannot be placed does not restrict other tenants.
  CHECK(*partitions.take(3, "a") == PerGpu{0, 0});
}

TEST_CASE("a partition that does not fit is placed once there is room") {
  Partitions partitions =
      // Each rounded up to one group of two.
      of({kSmall}, {{"a", each(250)}, {"b", each(250)}, {"c", each(250)}});
  CHECK(partitions.groups_of("b") == PerGpu{0b10});
  CHECK(partitions.groups_of("c").empty());
  const auto refused = partitions.take(1, "c");
  REQUIRE(!refused);
  CHECK(refused.error().message ==
        "cannot place the tenant's partition of 1 multiprocessors: only 0 of the 2 of GPU 0 are free");
  partitions.set_tenants({{"b", each(250)}, {"c", each(250)}});
  CHECK(*partitions.take(1, "c") == PerGpu{0b01});
  CHECK(partitions.groups_of("b") == PerGpu{0b10});  // not moved
  CHECK(partitions.unplaced_reason("c").empty());
}

TEST_CASE(
    "a changed partition applies to new sessions and its old groups stay reserved until old sessions end") {
  Partitions partitions = of({kLarge}, {{"a", each(500)}});
  CHECK(*partitions.take(1, "a") == PerGpu{0x00ff});
  partitions.set_tenants({{"a", each(250)}, {"b", each(750)}});
  CHECK(*partitions.take(2, "a") == PerGpu{0x000f});
  REQUIRE(!partitions.take(3, "b"));  // 12 groups, while a session of a still uses 8
  CHECK(*partitions.take(4, "c") == PerGpu{0xff00});
  partitions.release(1);
  CHECK(*partitions.take(3, "b") == PerGpu{0xfff0});
  // The partition remains while the tenant has sessions, although the configuration no longer has the tenant.
  partitions.set_tenants({{"a", each(250)}});
  CHECK(!partitions.take(5, "c"));
  partitions.release(3);
  CHECK(*partitions.take(5, "c") == PerGpu{0xfff0});
}

TEST_CASE("no partition is placed before the GPUs are known") {
  Partitions partitions;
  partitions.set_tenants({{"a", each(500)}});
  CHECK(!partitions.take(1, "a"));
  partitions.set_gpus({kSmall});
  CHECK(*partitions.take(1, "a") == PerGpu{0b01});
}

TEST_CASE("assignments survive their process's program") {
  Partitions before = of({kLarge}, {{"a", each(250)}, {"b", each(250)}, {"c", each(250)}});
  CHECK(*before.take(1, "a") == PerGpu{0x000f});
  CHECK(*before.take(2, "b") == PerGpu{0x00f0});
  // b's partition ends while it has a session, a's grows.
  const std::map<std::string, Partitions::Shares> changed{
      {"a", each(500)}, {"c", each(250)}, {"d", each(250)}};
  Partitions after = of({kLarge}, changed);
  after.restore(before.assigned());
  CHECK(after.groups_of("c") == PerGpu{0x0f00});
  CHECK(after.groups_of("a") == PerGpu{0xf00f});  // beside those of b's session
  CHECK(after.groups_of("d").empty());
  after.release(2);
  CHECK(after.groups_of("d") == PerGpu{0x00f0});
}
