// Tests the choice of sessions whose memory is moved to host memory, without processes.
#include "server/quota/memory_moves.h"

#include <map>

#include "tests/support/catch.h"

using namespace gpupool::quota;
using namespace std::chrono_literals;

namespace {

constexpr uint64_t kDevice = 100;
constexpr MoveTime kNow = 100s;

// Sessions numbered from 1: active unless `idle_for` is given, each with its own tenant, all memory movable.
struct Gpu {
  std::vector<MemoryUse> uses;
  std::map<std::string, uint64_t> guaranteed;
  uint64_t host = 1000;

  MemoryUse& add(uint64_t resident, std::optional<MoveTime> idle_for = {}) {
    MemoryUse use{.session = uses.size() + 1,
                  .tenant = std::string(1, static_cast<char>('a' + uses.size())),
                  .resident = resident,
                  .movable = resident};
    if (idle_for) use.idle_since = kNow - *idle_for;
    return uses.emplace_back(use);
  }
  MoveChoice choose(uint64_t session, uint64_t bytes, bool returns = false, MoveTime since = kNow) {
    return choose_moves(
        {session, bytes, returns, since}, uses,
        [&](const std::string& tenant) { return guaranteed.contains(tenant) ? guaranteed[tenant] : 0; },
        kDevice, host, kNow);
  }
};

std::vector<uint64_t> asked(const MoveChoice& choice) {
  std::vector<uint64_t> sessions;
  for (const MoveOrder& order : choice.orders) sessions.push_back(order.session);
  return sessions;
}

using Sessions = std::vector<uint64_t>;

}  // namespace

TEST_CASE("the longest idle sessions are moved first and active ones only if those do not suffice") {
  Gpu gpu;
  gpu.add(10);
  gpu.add(20, 1s);
  gpu.add(20, 9s);
  gpu.add(20, 5s);
  gpu.add(20);
  const auto choice = gpu.choose(1, 30);
  REQUIRE(asked(choice) == Sessions{3, 4});
  CHECK(choice.orders[0].bytes == 20);
  CHECK(choice.orders[0].keep == 0);
  CHECK(choice.orders[1].bytes == 10);
  CHECK(choice.orders[1].most == 20);
  CHECK_FALSE(choice.orders[0].at_once);
  CHECK_FALSE(choice.hopeless);
}

TEST_CASE("a session that allocates piece by piece gets half as much again as it has") {
  Gpu gpu;
  gpu.add(40);
  gpu.add(10, 9s);
  gpu.add(40, 8s);
  gpu.add(10, 7s);
  const auto choice = gpu.choose(1, 12);
  REQUIRE(asked(choice) == Sessions{2, 3});
  CHECK(choice.orders[1].bytes == 20);
  CHECK(gpu.choose(1, 12, true).orders.at(1).bytes == 2);
}

TEST_CASE("a recent command makes a session active and restored memory stays for longer") {
  Gpu gpu;
  gpu.add(10);
  MemoryUse& other = gpu.add(50, 10ms);
  other.stays_until = kNow + 1s;
  CHECK(gpu.choose(1, 30).orders.empty());
  other.idle_since = kNow - 100ms;
  CHECK(gpu.choose(1, 30).orders.empty());
  CHECK_FALSE(gpu.choose(1, 30).hopeless);  // possible later
  other.idle_since = kNow - kSurelyIdleAfter;
  CHECK(asked(gpu.choose(1, 30)) == Sessions{2});
  other.idle_since = kNow - kIdleAfter;
  other.stays_until = kNow;
  CHECK(asked(gpu.choose(1, 30)) == Sessions{2});
}

TEST_CASE("active sessions are asked to yield once they have had their memory for a while") {
  Gpu gpu;
  gpu.add(10);
  gpu.add(30).stays_until = kNow - 1s;
  gpu.add(30).stays_until = kNow - 2s;
  gpu.add(30).stays_until = kNow + 1s;
  const auto choice = gpu.choose(1, 90, true);
  CHECK(asked(choice) == Sessions{3, 2});
  CHECK(choice.orders.at(0).at_once);
}

TEST_CASE("the first of the waiting sessions gets memory from the others") {
  Gpu gpu;
  gpu.add(40).waits_since = kNow - 3s;
  gpu.add(40).waits_since = kNow - 2s;
  CHECK(asked(gpu.choose(1, 40, true, kNow - 3s)) == Sessions{2});
  CHECK(gpu.choose(2, 40, true, kNow - 2s).orders.empty());
  gpu.uses[1].waits_since = kNow - 3s;  // equal times: only one of the two may take memory
  CHECK(asked(gpu.choose(1, 40, true, kNow - 3s)) == Sessions{2});
  CHECK(gpu.choose(2, 40, true, kNow - 3s).orders.empty());
}

TEST_CASE("the guaranteed memory of all sessions of a tenant together is not moved") {
  Gpu gpu;
  gpu.add(0);
  gpu.add(40, 9s).tenant = "t";
  gpu.add(40, 8s).tenant = "t";
  gpu.guaranteed["t"] = 50;
  auto choice = gpu.choose(1, 80);
  REQUIRE(asked(choice) == Sessions{2});
  CHECK(choice.orders[0].most == 30);
  CHECK(choice.orders[0].keep == 10);
  // The same holds while an order is on its way.
  gpu.uses[1].will_keep = 10;
  choice = gpu.choose(1, 80);
  CHECK(choice.orders.empty());
  CHECK_FALSE(choice.hopeless);
  gpu.uses[1].will_keep = 20;
  CHECK(gpu.choose(1, 80).orders.at(0).most == 10);
  gpu.guaranteed["t"] = 80;
  gpu.uses[1].will_keep.reset();
  CHECK(gpu.choose(1, 10).hopeless);
}

TEST_CASE(
    "a tenant below its guaranteed memory gets it at once even from active sessions and before longer "
    "waiting ones") {
  Gpu gpu;
  gpu.add(10);
  gpu.add(40).stays_until = kNow + 1s;
  gpu.add(40).waits_since = kNow - 9s;
  CHECK(gpu.choose(1, 60).orders.empty());
  gpu.guaranteed["a"] = 69;
  CHECK(gpu.choose(1, 60).orders.empty());
  gpu.guaranteed["a"] = 70;
  CHECK(asked(gpu.choose(1, 60)) == Sessions{3, 2});
  CHECK(gpu.choose(1, 60).entitled);
  CHECK_FALSE(gpu.choose(1, 61).entitled);
}

TEST_CASE("a session with an order is not asked again and its pending bytes count") {
  Gpu gpu;
  gpu.add(10);
  gpu.add(40, 9s).will_keep = 15;
  gpu.add(40, 8s);
  CHECK(gpu.choose(1, 25).orders.empty());
  const auto choice = gpu.choose(1, 30);
  REQUIRE(asked(choice) == Sessions{3});
  CHECK(choice.orders[0].bytes == 5);
}

TEST_CASE("host memory limits the moved bytes") {
  Gpu gpu;
  gpu.add(10);
  gpu.add(40, 9s);
  gpu.add(40, 8s);
  gpu.host = 30;
  const auto choice = gpu.choose(1, 80);
  REQUIRE(asked(choice) == Sessions{2});
  CHECK(choice.orders[0].most == 30);
  gpu.host = 0;
  CHECK(gpu.choose(1, 80).hopeless);
  CHECK_FALSE(gpu.choose(1, 80, true).hopeless);
}

TEST_CASE("no session is moved for an unsatisfiable request or if nothing is movable") {
  Gpu gpu;
  gpu.add(60).in_host = 20;
  gpu.add(40, 9s);
  CHECK(gpu.choose(1, 21).hopeless);
  CHECK(gpu.choose(1, 21).orders.empty());
  CHECK(asked(gpu.choose(1, 20)) == Sessions{2});
  gpu.uses[1].movable = 0;
  CHECK(gpu.choose(1, 20).hopeless);
  CHECK(gpu.choose(7, 1).hopeless);
}

TEST_CASE("no session gives more than it has whatever it reports") {
  Gpu gpu;
  gpu.add(UINT64_MAX);
  gpu.add(UINT64_MAX, 9s).tenant = "t";
  gpu.add(UINT64_MAX, MoveTime(-1h)).tenant = "t";
  gpu.add(10, 9s).movable = UINT64_MAX;
  gpu.guaranteed["t"] = UINT64_MAX;
  CHECK(gpu.choose(1, UINT64_MAX, true).orders.at(0).most == 10);
}
