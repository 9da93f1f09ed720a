// Random test of accounting in the core: events, crashes, repeated reports.
#include <random>

#include "tests/scheduler/core/usage_pool.h"

using namespace gpupool;
using namespace gpupool::scheduler;

namespace {

// A node with four GPUs and leases that come and go, with a count of what they use besides the scheduler's.
struct RandomPool : TestPool {
  struct Held {
    LeaseId id;
    Counters counters;
  };
  unsigned pick(unsigned below) { return static_cast<unsigned>(random() % below); }
  void ask_for_some() {
    const Stream stream = request(ask(1, 100 + pick(900)));
    if (const Grant* const granted = grant(stream)) {
      held.push_back({granted->lease, {.lease = granted->lease}});
      return;
    }
    core->client_disconnected(stream, now);
    settle();
  }
  void end_some() {
    if (held.empty()) return;
    const size_t which = pick(static_cast<unsigned>(held.size()));
    Held ending = held[which];
    held.erase(held.begin() + static_cast<std::ptrdiff_t>(which));
    REQUIRE(core->evict(lease::hexadecimal(ending.id), "test", 0, now));
    settle();
    ending.counters.complete = true;
    ++ending.counters.revision;
    for (unsigned times = 0; times <= pick(2); ++times) report_counters(*this, node, ending.counters, 0);
  }
  void pass_some() {
    const Time time = pick(10) == 0 ? pick(5'000'000) : pick(5'000);
    milli_ms += leased_milli() * static_cast<uint64_t>(time);
    now += time;
    pool::NodeReport all;
    all.set_ready(true);
    all.set_now_ms(now);
    for (Held& one : held) {
      const uint64_t more = pick(1'000);
      one.counters.nanoseconds += more;
      nanoseconds += more;
      pool::LeaseUse& use = *all.add_leases();
      use.set_lease(one.id);
      use.set_sessions(1);
      *all.add_counters() = one.counters.message();
    }
    core->report(node, all, now);  // before the scheduler's clock ticks: the node is never lost
    // Clients come back after crashes, and keep their leases.
    for (const Held& one : held) core->resume(++streams, "a", one.id, now);
    if (pick(3) == 0) core->tick(now);
    settle();
    published = {};
  }

  std::mt19937 random{20261129};
  Stream node = register_node(1, 1, 4);
  std::vector<Held> held;
  uint64_t milli_ms = 0, nanoseconds = 0;
};

}  // namespace

TEST_CASE("usage agrees with an independent count over random events and crashes") {
  RandomPool pool;
  for (int step = 0; step < 3'000; ++step) {
    switch (pool.pick(6)) {
      case 0: pool.ask_for_some(); break;
      case 1: pool.end_some(); break;
      case 2:
        if (pool.pick(4) == 0) pool.node = crash(pool, 4);
        break;
      default: pool.pass_some();
    }
  }
  pool.pass_some();  // the node repeats what a crash may have lost
  const auto used = used_by(pool);
  CHECK(used.leased_milli_ms() == pool.milli_ms);
  CHECK(used.gpu_nanoseconds() == pool.nanoseconds);
  CHECK(rows(pool) > 100);
}
