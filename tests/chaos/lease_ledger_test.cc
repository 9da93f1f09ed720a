// LeaseLedger of the chaos test finds double grants and sessions without a lease.
#include "tests/chaos/lease_ledger.h"

#include <utility>

#include "protocol/lease/token.h"
#include "tests/support/catch.h"

using namespace gpupool;
using namespace gpupool::testing;

namespace {

const std::string kGpu = "GPU-00000000-0000-0000-0000-000000000001";
const std::string kOther = "GPU-00000000-0000-0000-0000-000000000003";  // of the node m
constexpr uint64_t kMemory = 100 << 20;
const int64_t kStart = milliseconds_of("2026-01-02T03:04:05.000Z");

std::string id(char which) {
  return lease::hexadecimal(std::string(16, which));
}
std::string boot(char which) {
  return lease::hexadecimal(std::string(16, which));
}

struct Pool {
  Pool() {
    ledger.gpu(kGpu, kMemory);
    ledger.gpu(kOther, kMemory);
    log(0, R"("event":"scheduler_attends","boot":")" + boot('A') + "\"");
  }
  // `times`: the number of such shares of the GPU in one token.
  void grant(char which, double seconds, uint32_t milli, uint64_t bytes, char to = 'A',
             const std::string& gpu = kGpu, int times = 1) {
    lease::Lease lease;
    lease.set_id(std::string(16, which));
    lease.set_node(node);
    lease.set_serial(++serial);
    lease.set_boot(std::string(16, to));
    lease.set_issued_ms(kStart + static_cast<int64_t>(seconds * 1000));
    for (int i = 0; i < times; ++i) {
      lease::Share& share = *lease.add_shares();
      share.set_gpu_uuid(gpu);
      share.set_compute_milli(milli);
      share.set_memory_bytes(bytes);
    }
    ledger.token(lease);
  }
  void log(int second, const std::string& what) {
    char time[24];
    std::snprintf(time, sizeof time, "%02d.000Z", 5 + second);
    ledger.log_line(node, R"({"time":"2026-01-02T03:04:)" + std::string(time) + "\"," + what + "}");
  }
  void event(int second, const char* event, char which, int session = 0) {
    log(second, R"("event":")" + std::string(event) + R"(","lease":")" + id(which) + R"(","session":)" +
                    std::to_string(session) + R"(,"worker":7)");
  }
  // The node is to end the lease up to its present token, because the lease has moved.
  void left(int second, char which) {
    log(second,
        R"("event":"lease_ends","lease":")" + id(which) + R"(","last_serial":)" + std::to_string(serial));
  }
  void restart(int second, char to) {
    ledger.poold_gone(node, kStart + second * 1000);
    log(second, R"("event":"scheduler_attends","boot":")" + boot(to) + "\"");
  }
  size_t found() const { return ledger.violations().size(); }
  LeaseLedger ledger;
  std::string node = "n";
  uint64_t serial = 0;
};

}  // namespace

TEST_CASE("the ledger accepts leases that follow each other or fit together") {
  Pool pool;
  pool.grant('a', 1, 600, kMemory / 2);
  pool.event(2, "session_started", 'a', 1);
  pool.grant('b', 2, 400, kMemory / 2);
  pool.event(5, "lease_ends", 'a');
  pool.event(6, "session_ended", 'a', 1);
  pool.event(6, "lease_gone", 'a');
  pool.grant('c', 6, 600, kMemory / 2);
  pool.grant('c', 8, 600, kMemory / 2);  // renewed
  pool.event(9, "lease_ends", 'c');      // it was never used
  pool.grant('d', 9, 600, 1);
  CHECK(pool.ledger.violations() == std::vector<std::string>{});
  REQUIRE(pool.ledger.sessions().size() == 1);
  CHECK(pool.ledger.sessions()[0].worker == 7);
}

TEST_CASE("the ledger finds compute or memory that is granted twice") {
  Pool pool;
  pool.grant('a', 1, 600, kMemory / 2);
  SECTION("a thousandth") {
    pool.grant('b', 2, 401, 1);
  }
  SECTION("a byte") {
    pool.grant('b', 2, 1, kMemory / 2 + 1);
  }
  SECTION("all of its memory") {
    pool.grant('b', 2, 1, 0);
  }
  SECTION("before the first is gone") {
    pool.event(2, "session_started", 'a', 1);
    pool.event(3, "lease_ends", 'a');
    pool.grant('b', 4, 600, 1);
    pool.event(5, "session_ended", 'a', 1);
    pool.event(5, "lease_gone", 'a');
  }
  CHECK(pool.found() == 1);
}

TEST_CASE("the ledger counts all shares of a GPU in one lease, which a scheduler must not grant") {
  Pool pool;
  const auto grant_two = [&](double seconds, uint32_t milli, uint64_t bytes) {
    pool.grant('a', seconds, milli, bytes, 'A', kGpu, 2);
  };
  SECTION("too much compute") {
    grant_two(1, 501, 1);
    CHECK(pool.found() == 1);
  }
  SECTION("too much memory") {
    grant_two(1, 1, kMemory / 2 + 1);
    CHECK(pool.found() == 1);
  }
  SECTION("all of its memory twice") {
    grant_two(1, 1, 0);
    CHECK(pool.found() == 1);
  }
  SECTION("too much beside another lease") {
    grant_two(1, 300, 1);
    pool.grant('b', 2, 401, 1);
    CHECK(pool.found() == 1);
  }
  SECTION("also while the lease has two grants on its node, until both have ended") {
    grant_two(1, 300, 1);
    ++pool.serial;  // of the token for the other node
    grant_two(4, 300, 1);
    pool.grant('b', 5, 400, 1);
    const uint64_t last = std::exchange(pool.serial, 1);
    pool.left(6, 'a');
    pool.serial = last;
    pool.grant('c', 7, 1, 1);
    CHECK(pool.found() == 1);
    pool.event(8, "lease_ends", 'a');
    pool.grant('d', 9, 599, 1);
    CHECK(pool.found() == 1);
  }
}

TEST_CASE("shares of a poold are free only after it has ended") {
  Pool pool;
  pool.grant('a', 1, 1000, 0);
  SECTION("after it") {
    pool.ledger.poold_gone("n", kStart + 3000);
    pool.log(4, R"("event":"scheduler_attends","boot":")" + boot('B') + "\"");
    pool.grant('b', 4, 1000, 0, 'B');
    CHECK(pool.found() == 0);
  }
  SECTION("before it") {
    pool.grant('b', 2, 1000, 0);
    pool.ledger.poold_gone("n", kStart + 3000);
    CHECK(pool.found() == 1);
  }
  SECTION("a token for one that is not there any more gives nothing") {
    pool.ledger.poold_gone("n", kStart + 3000);
    pool.log(4, R"("event":"scheduler_attends","boot":")" + boot('B') + "\"");
    pool.grant('b', 4, 1000, 0, 'B');
    pool.grant('c', 5, 1000, 0, 'A');
    CHECK(pool.found() == 0);
  }
}

TEST_CASE("the ledger finds sessions without a granted lease") {
  Pool pool;
  pool.grant('a', 1, 500, 1);
  SECTION("of no lease") {
    pool.event(2, "session_started", 'x', 1);
  }
  SECTION("of one that is over") {
    pool.event(2, "session_started", 'a', 1);
    pool.event(3, "lease_gone", 'a');
  }
  SECTION("of one that has ended") {
    pool.event(2, "session_started", 'a', 1);
    pool.event(3, "lease_ends", 'a');
    pool.event(3, "session_ended", 'a', 1);
    pool.event(3, "lease_gone", 'a');
    pool.event(4, "session_started", 'a', 2);
  }
  SECTION("of a GPU that nobody has") {
    pool.grant('b', 2, 1, 1, 'A', "GPU-00000000-0000-0000-0000-000000000002");
  }
  CHECK(pool.found() > 0);
}

TEST_CASE("a share may be granted again in the scheduler turn that reads its release but not earlier") {
  for (const bool early : {false, true}) {
    Pool pool;
    pool.grant('a', 1, 1000, kMemory);
    pool.event(2, "session_started", 'a', 1);
    pool.event(5, "lease_ends", 'a');
    pool.event(6, "session_ended", 'a', 1);
    pool.event(6, "lease_gone", 'a');
    pool.grant('b', early ? 5.980 : 5.995, 1000, kMemory);  // grants have the time at which the turn began
    CHECK(pool.found() == (early ? 1 : 0));
  }
}

TEST_CASE("a lease that ends within the scheduler turn of its grant takes no share") {
  Pool pool;
  pool.grant('a', 1, 1000, 0);
  pool.grant('b', 5.995, 1000, 0);
  pool.event(6, "lease_ends", 'b');
  CHECK(pool.ledger.violations() == std::vector<std::string>{});
}

namespace {

// A lease that goes from the node n to m at second 4, and comes back at second 8.
struct MovedLease : Pool {
  MovedLease() {
    at("m", [&] { log(0, R"("event":"scheduler_attends","boot":")" + boot('M') + "\""); });
    grant('a', 1, 1000, 0);
    event(2, "session_started", 'a', 1);
    at("m", [&] {
      grant('a', 3, 1000, 0, 'M', kOther);
      event(3, "session_started", 'a', 1);
    });
    event(4, "session_ended", 'a', 1);
    serial -= 1, left(4, 'a'), serial += 1;
  }
  template <class Do>
  void at(const std::string& other, Do what) {
    const std::string before = std::exchange(node, other);
    what();
    node = before;
  }
  void back(int second, char to = 'A') {
    grant('a', second, 1000, 0, to);
    event(second, "session_started", 'a', 2);
    at("m", [&] {
      event(second + 1, "session_ended", 'a', 1);
      serial -= 1, left(second + 1, 'a'), serial += 1;
    });
  }
};

}  // namespace

TEST_CASE("the ledger follows a lease that moves away and comes back") {
  MovedLease pool;
  SECTION("another lease has its place meanwhile") {
    pool.grant('b', 5, 1000, 0);
    pool.event(7, "lease_ends", 'b');
    pool.back(8);
    CHECK(pool.ledger.violations() == std::vector<std::string>{});
    CHECK(pool.ledger.grants() == 4);
  }
  SECTION("to a poold that was restarted meanwhile") {
    pool.restart(6, 'B');
    pool.back(8, 'B');
    CHECK(pool.ledger.violations() == std::vector<std::string>{});
  }
  SECTION("its new place is free again at its end") {
    pool.back(8);
    pool.event(12, "lease_ends", 'a');
    pool.event(13, "session_ended", 'a', 2);
    pool.event(13, "lease_gone", 'a');
    pool.grant('b', 13, 1000, 0);
    CHECK(pool.ledger.violations() == std::vector<std::string>{});
  }
}

TEST_CASE("the ledger counts a lease once that is back before its node knows that it left") {
  Pool pool;
  pool.grant('a', 1, 600, kMemory / 2);
  ++pool.serial;  // of the token for the other node
  pool.grant('a', 4, 600, kMemory / 2);
  const bool with_another = GENERATE(false, true);
  if (with_another) pool.grant('b', 5, 401, 1);
  const uint64_t last = std::exchange(pool.serial, 1);
  pool.left(6, 'a');
  pool.serial = last;
  pool.grant('c', 7, 400, 1);
  pool.event(8, "lease_ends", 'a');
  pool.grant('d', 9, with_another ? 100 : 600, 1);
  CHECK(pool.found() == (with_another ? 2 : 0));  // beside b, and beside b and c
}

TEST_CASE("the ledger finds double grants around moves") {
  MovedLease pool;
  SECTION("the old place is granted before the lease has left") {
    pool.grant('b', 3.5, 1, 1);
  }
  SECTION("the new place belongs to another lease") {
    pool.at("m", [&] { pool.grant('b', 5, 1, 1, 'M', kOther); });
  }
  SECTION("it comes back to a place that is taken") {
    pool.grant('b', 5, 1000, 0);
    pool.back(8);
  }
  SECTION("a session begins where it has left") {
    pool.event(5, "session_started", 'a', 2);
    pool.event(6, "session_ended", 'a', 2);
  }
  CHECK(pool.found() == 1);
}

TEST_CASE("the ledger finds a lease that goes on at a restarted poold") {
  Pool pool;
  pool.grant('a', 1, 1000, 0);
  pool.restart(3, 'B');
  const bool was_elsewhere = GENERATE(false, true);  // and its program has not read that token
  if (was_elsewhere) {
    pool.node = "m";
    pool.left(4, 'a');
    pool.node = "n";
  }
  pool.grant('a', 4, 1000, 0, 'B');
  CHECK(pool.found() == (was_elsewhere ? 0 : 1));
}
