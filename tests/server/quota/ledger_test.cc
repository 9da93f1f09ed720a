// Tests concurrent reservations of one tenant's memory by many processes that are killed at random.
#include "server/quota/ledger.h"

#include <signal.h>
#include <unistd.h>

#include <array>
#include <cstdio>
#include <random>
#include <thread>

#include "server/quota/account_lock.h"
#include "server/quota/accounts.h"
#include "tests/support/catch.h"
#include "tests/support/processes.h"

using namespace gpupool;
using namespace gpupool::quota;
using namespace gpupool::testing;

namespace {

constexpr uint64_t kGranule = 2u << 20;

struct Tenant {
  explicit Tenant(uint64_t limit) { limit_to(limit); }
  void limit_to(uint64_t bytes) { REQUIRE(accounts.set("t", {.each = {.memory_bytes = bytes}})); }
  Accounts::Page page() { return *accounts.of("t"); }
  std::unique_ptr<Accounts::Place> place() { return std::move(*accounts.take("t")); }
  uint64_t used() {
    uint64_t sum = 0;
    for (const auto& slot : (*page())->sessions) sum += slot.memory_used[0].load();
    return sum;
  }
  Accounts accounts;
};

// A worker in another process (ledger_racer).
struct Racer {
  Racer(Tenant& tenant, const std::string& what, uint64_t bytes = kGranule)
      : place(tenant.place()),
        process({LEDGER_RACER,
                 "/proc/" + std::to_string(::getpid()) + "/fd/" + std::to_string(place->descriptor()),
                 std::to_string(place->slot()), what, std::to_string(bytes)},
                {}) {}
  // Releases the place after the process has ended, as poold does.
  void kill() {
    process.signal(SIGKILL);
    CHECK(process.wait() == 128 + SIGKILL);
    place.reset();
  }
  std::unique_ptr<Accounts::Place> place;
  Process process;
};

// True if usage has stopped changing and does not exceed the limit.
bool eventually_at_most(Tenant& tenant, uint64_t limit) {
  for (int i = 0; i < 1000; ++i) {
    const uint64_t used = tenant.used();
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
    if (used == tenant.used() && used != 0) return used <= limit;
  }
  return false;
}

}  // namespace

TEST_CASE("a memory limit implies default limits of streams and modules and sessions") {
  Tenant tenant(0);
  const auto counts = [&](const Quota& quota) {
    REQUIRE(tenant.accounts.set("t", quota));
    return std::array<uint32_t, 3>{(*tenant.page())->streams.load(), (*tenant.page())->modules.load(),
                                   quota.most_sessions()};
  };
  const std::array<uint32_t, 3> none{0, 0, 0}, usual{4096, 16384, kUsualSessions};
  CHECK(counts({}) == none);
  CHECK(counts({.each = {.memory_bytes = 1 << 30}}) == usual);
  CHECK(counts({.gpus = {{3, {.memory_bytes = 1 << 30}}}}) == usual);
  CHECK(counts({.gpus = {{3, {.memory_bytes = 0}}}}) == none);
  CHECK(counts({.each = {.memory_bytes = 1 << 30}, .sessions = 100, .streams = 5, .modules = 20'000}) ==
        std::array<uint32_t, 3>{5, 20'000, 100});
  CHECK(counts({.streams = 5}) == std::array<uint32_t, 3>{5, 0, 0});
}

TEST_CASE("a GPU can have a limit of its own") {
  Tenant tenant(0);
  const auto place = tenant.place();
  Ledger ledger(tenant.page(), nullptr, place->slot());
  CHECK_FALSE(ledger.limited());
  REQUIRE(tenant.accounts.set("t", {.gpus = {{1, {.memory_bytes = 300}}}}));
  CHECK(ledger.limited());
  CHECK_FALSE(ledger.room(0));
  CHECK(ledger.reserve(0, 1000));
  CHECK_FALSE(ledger.reserve(1, 301));
  CHECK(ledger.reserve(1, 300));
  REQUIRE(tenant.accounts.set("t", {.each = {.memory_bytes = 1100}, .gpus = {{1, {.memory_bytes = 0}}}}));
  CHECK(ledger.room(0)->free == 100);
  CHECK_FALSE(ledger.room(1));  // no limit for this GPU
  CHECK_FALSE(ledger.reserve(0, 101));
  CHECK(ledger.reserve(1, 1000));
}

TEST_CASE("a limit holds for all sessions of a tenant together, to the byte") {
  Tenant tenant(1000);
  const auto a = tenant.place(), b = tenant.place();
  auto page = *SharedPage<SessionPage>::create("session");
  Ledger first(tenant.page(), page, a->slot()), second(tenant.page(), nullptr, b->slot());
  CHECK(first.limited());
  CHECK(first.reserve(0, 600));
  CHECK_FALSE(second.reserve(0, 401));
  CHECK(second.reserve(0, 400));
  CHECK_FALSE(first.reserve(0, 1));
  CHECK(first.room(0)->limit == 1000);
  CHECK(first.room(0)->free == 0);
  CHECK(second.reserve(1, 1000));  // another GPU
  first.release(0, 100);
  CHECK(second.room(0)->free == 100);
  CHECK_FALSE(second.reserve(0, UINT64_MAX));
  CHECK(second.reserve(0, 100));
  CHECK((*page)->gpus[0].memory_used == 500);
  CHECK((*page)->gpus[0].memory_peak == 600);
  first.release(0, 500);
  second.release(0, 500);
  CHECK(first.reserve(0, 800));  // as if the device then failed to allocate it
  first.release(0, 800);
  first.undo_peak(0);
  CHECK((*page)->gpus[0].memory_peak == 600);
  CHECK((*page)->over_quota == 0);
  first.note_refusal(0, 1);
  CHECK((*page)->over_quota == 1);
}

TEST_CASE("a refusal says what was asked for and what all sessions of the tenant use") {
  Tenant tenant(1000);
  const auto a = tenant.place(), b = tenant.place();
  auto page = *SharedPage<SessionPage>::create("session");
  Ledger first(tenant.page(), page, a->slot()), second(tenant.page(), nullptr, b->slot());
  std::vector<Refusal> refusals;
  first.on_refusal([&](const Refusal& refusal) { refusals.push_back(refusal); });
  CHECK(first.reserve(0, 600));
  CHECK(second.reserve(0, 300));
  CHECK_FALSE(first.reserve(0, 200));
  first.note_refusal(0, 200);
  first.count_refusal();
  REQUIRE(refusals.size() == 1);
  CHECK(refusals[0].kind == KindId::memory_bytes);
  CHECK(refusals[0].gpu == 0);
  CHECK(refusals[0].asked == 200);
  CHECK(refusals[0].used == 900);
  CHECK(refusals[0].limit == 1000);
  CHECK((*page)->over_quota == 2);
  tenant.limit_to(0);
  first.note_refusal(0, 200);  // the limit is gone: there is nothing to tell
  CHECK(refusals.size() == 1);
}

TEST_CASE("a changed limit applies to later requests and frees nothing") {
  Tenant tenant(0);
  const auto place = tenant.place();
  Ledger ledger(tenant.page(), nullptr, place->slot());
  CHECK_FALSE(ledger.limited());
  CHECK_FALSE(ledger.room(0));
  CHECK(ledger.reserve(0, 1'000'000));
  tenant.limit_to(1000);
  CHECK(ledger.limited());
  CHECK(ledger.room(0)->free == 0);
  CHECK_FALSE(ledger.reserve(0, 1));
  CHECK(ledger.used(0) == 1'000'000);
  ledger.release(0, 999'500);
  CHECK(ledger.reserve(0, 500));
  CHECK_FALSE(ledger.reserve(0, 1));
  tenant.limit_to(0);
  CHECK(ledger.reserve(0, uint64_t{1} << 50));
}

TEST_CASE("nothing is counted without an account or for an unknown GPU") {
  Ledger none(nullptr, nullptr, 0);
  CHECK(none.reserve(0, UINT64_MAX));
  CHECK(none.reserve(-1, 1));
  none.release(0, 5);
  none.note_refusal(0, 1);
  CHECK(none.used(0) == 0);
  Tenant tenant(1000);
  const auto place = tenant.place();
  Ledger ledger(tenant.page(), nullptr, place->slot());
  CHECK_FALSE(ledger.reserve(-1, 1));
  CHECK_FALSE(ledger.reserve(kMostGpus, 1));
}

TEST_CASE("32 processes that race get all of a quota and not a byte more") {
  constexpr unsigned kPieces = 5'000;
  for (int round = 0; round < 3; ++round) {
    Tenant tenant(kPieces * kGranule + kGranule - 1);
    std::vector<std::unique_ptr<Racer>> racers;
    for (int i = 0; i < 32; ++i) racers.push_back(std::make_unique<Racer>(tenant, "fill"));
    unsigned taken = 0;
    for (auto& racer : racers) {
      REQUIRE(racer->process.await_output("."));
      unsigned own = 0;
      REQUIRE(std::sscanf(racer->process.output().c_str(), "took %u.", &own) == 1);
      taken += own;
    }
    CHECK(taken == kPieces);
    CHECK(tenant.used() == kPieces * kGranule);
    for (auto& racer : racers) racer->kill();
    CHECK(tenant.used() == 0);
  }
}

TEST_CASE("workers killed at any instruction leak nothing and block no other worker") {
  constexpr uint64_t kLimit = 40 * kGranule;
  Tenant tenant(kLimit);
  std::mt19937 random(1);
  std::vector<std::unique_ptr<Racer>> racers;
  for (int i = 0; i < 6; ++i) racers.push_back(std::make_unique<Racer>(tenant, "churn"));
  for (int kills = 0; kills < 60; ++kills) {
    const auto until = std::chrono::steady_clock::now() + std::chrono::microseconds(random() % 20'000);
    while (std::chrono::steady_clock::now() < until) std::this_thread::yield();
    auto& victim = racers[random() % racers.size()];
    victim->kill();
    victim = std::make_unique<Racer>(tenant, "churn");
  }
  for (auto& racer : racers) racer->process.signal(SIGSTOP);
  CHECK(eventually_at_most(tenant, kLimit));
  for (auto& racer : racers) racer->kill();
  CHECK(tenant.used() == 0);
  const auto place = tenant.place();
  Ledger ledger(tenant.page(), nullptr, place->slot());
  const auto before = std::chrono::steady_clock::now();
  CHECK(ledger.reserve(0, kLimit));
  CHECK_FALSE(ledger.reserve(0, 1));
  CHECK(std::chrono::steady_clock::now() - before < std::chrono::seconds(20));
}

TEST_CASE("a worker stopped while it holds the lock delays others for no longer than their timeout") {
  Tenant tenant(10 * kGranule);
  Racer stopped(tenant, "stop");
  REQUIRE(stopped.process.await_output("has it\n"));
  const auto place = tenant.place();
  Ledger ledger(tenant.page(), nullptr, place->slot());
  const auto before = std::chrono::steady_clock::now();
  CHECK_FALSE(ledger.reserve(0, kGranule));
  CHECK(std::chrono::steady_clock::now() - before < std::chrono::seconds(20));
  CHECK(tenant.used() == 0);
  // Once the lock's owner has died, a waiting thread gets the lock.
  bool got = false;
  std::thread waiter([&] { got = ledger.reserve(0, kGranule); });
  stopped.kill();
  waiter.join();
  CHECK(got);
  CHECK(tenant.used() == kGranule);
}

TEST_CASE("the end of a worker does not release another worker's lock") {
  Tenant tenant(kGranule);
  const auto a = tenant.place();
  auto b = tenant.place();
  const AccountLock lock(**tenant.page(), a->slot(), std::chrono::milliseconds(0));
  CHECK(lock.held());
  b.reset();
  const AccountLock other(**tenant.page(), 7, std::chrono::milliseconds(10));
  CHECK_FALSE(other.held());
}

TEST_CASE("threads of one worker reserve memory concurrently") {
  Tenant tenant(100'000);
  const auto place = tenant.place();
  Ledger ledger(tenant.page(), nullptr, place->slot());
  std::atomic<unsigned> taken{0};
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&] {
      for (int i = 0; i < 2000; ++i) {
        if (ledger.reserve(0, 3)) ledger.release(0, 3);
      }
      while (ledger.reserve(0, 7)) ++taken;
    });
  }
  for (auto& thread : threads) thread.join();
  CHECK(taken == 100'000 / 7);
}

TEST_CASE("shared memory is charged once until the last session has let go of it") {
  Tenant tenant(1000);
  auto a = tenant.place(), b = tenant.place();
  auto page = *SharedPage<SessionPage>::create("session");
  auto first = std::make_unique<Ledger>(tenant.page(), page, a->slot());
  auto second = std::make_unique<Ledger>(tenant.page(), nullptr, b->slot());
  const auto free = [&] { return second->room(0)->free; };
  REQUIRE(first->reserve(0, 600));
  REQUIRE(first->share(0, 600, 77));
  CHECK(free() == 400);
  CHECK(first->used(0) == 600);
  CHECK((*page)->gpus[0].memory_used == 600);
  CHECK(second->join(0, 600, 77));
  CHECK(second->join(0, 600, 77));
  CHECK(free() == 400);
  CHECK(second->used(0) == 600);
  CHECK_FALSE(first->reserve(0, 401));
  first->leave(0, 600, 77);
  CHECK(free() == 400);  // the second session still uses it
  CHECK(first->used(0) == 0);
  CHECK((*page)->gpus[0].memory_used == 0);
  second->leave(0, 600, 77);
  CHECK(free() == 400);  // the second session has joined twice
  second->leave(0, 600, 77);
  CHECK(free() == 1000);
  second->leave(0, 600, 77);
  CHECK(free() == 1000);

  // Memory that no session uses any more is charged anew, within the limit.
  CHECK_FALSE(second->join(0, 1001, 78));
  CHECK(second->join(0, 500, 78));
  CHECK_FALSE(first->join(0, 501, 79));
  CHECK(first->join(0, 500, 78));
  CHECK(free() == 500);

  // poold releases what a killed worker had reserved.
  second.reset();
  b.reset();
  CHECK(first->room(0)->free == 500);
  b = tenant.place();
  second = std::make_unique<Ledger>(tenant.page(), nullptr, b->slot());
  CHECK(second->used(0) == 0);
  first.reset();
  a.reset();
  CHECK(free() == 1000);
}

TEST_CASE("the number of shared allocations is limited and a freed slot can be reused") {
  Tenant tenant(0);
  auto place = tenant.place();
  Ledger ledger(tenant.page(), nullptr, place->slot());
  REQUIRE(ledger.reserve(0, kMostShared + 1));
  for (uint64_t id = 1; id <= kMostShared; ++id) REQUIRE(ledger.share(0, 1, id));
  CHECK_FALSE(ledger.share(0, 1, kMostShared + 1));
  CHECK(ledger.used(0) == kMostShared + 1);
  ledger.leave(0, 1, 1000);
  CHECK(ledger.share(0, 1, kMostShared + 1));
  CHECK(ledger.used(0) == kMostShared);
}
