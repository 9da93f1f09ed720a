// Measures how long the scheduler's thread searches for moves in a large pool.
#include <cstdio>
#include <ctime>
#include <random>

#include "tests/scheduler/core/fragmented_pool.h"
#include "tests/support/catch.h"

using namespace gpupool;
using namespace gpupool::scheduler;

namespace {

double thread_milliseconds() {
  timespec now{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) * 1e3 + static_cast<double>(now.tv_nsec) * 1e-6;
}

// 1,250 nodes with 8 GPUs each, nearly full of shares and whole GPUs, with gaps where leases have ended.
struct LargePool : TestPool {
  LargePool() : TestPool(true) {
    pool::Policy policy = defragmenting();
    policy.set_heartbeat_ms(100), policy.set_node_lost_ms(86'400'000);
    policy.set_defragment_moves(0), policy.set_defragment_bytes(0), policy.set_defragment_at_once(0);
    policy.set_move_bytes_per_second(1'000'000'000'000);
    if (!core->set_policy(policy, now)) throw std::runtime_error("the policy was refused");
    std::vector<Stream> nodes;
    for (uint64_t node = 0; node < 1'250; ++node) nodes.push_back(register_node(node, 1'000 + node, 8));
    suspend_for(600);  // the time for nodes to register after the start
    policy.set_heartbeat_ms(60'000);
    if (!core->set_policy(policy, now)) throw std::runtime_error("the policy was refused");
    for (const Stream node : nodes) report(node);
    std::mt19937_64 random(1);
    constexpr uint32_t kMilli[] = {1000, 1000, 500, 500, 300, 200};
    std::vector<Stream> holders;
    for (int i = 0; i < 18'000; ++i) {
      const Stream holder = ++streams;
      core->request(holder, i % 2 == 0 ? "a" : "b", ask(1, kMilli[random() % 6]), {}, now);
      holders.push_back(holder);
    }
    settle();
    end_some(holders, nodes, random);
    now += 100'000;
    for (const Stream node : nodes) report(node);
  }

  // Lets a tenth of the leases end, and the requests without a lease leave the queue.
  void end_some(const std::vector<Stream>& holders, const std::vector<Stream>& nodes,
                std::mt19937_64& random) {
    std::map<uint64_t, std::vector<std::pair<LeaseId, uint32_t>>> ended;  // by node
    std::map<Stream, const Grant*> grants;
    for (const ClientMessage& one : published.clients) {
      if (const auto* const granted = std::get_if<Grant>(&one.message)) grants[one.stream] = granted;
    }
    for (const Stream holder : holders) {
      const auto granted = grants.find(holder);
      if (granted == grants.end()) core->client_disconnected(holder, now);
      if (granted == grants.end() || random() % 10 != 0) continue;
      ended[std::stoull(granted->second->servers[0].lease.node().substr(1))].emplace_back(
          granted->second->lease, 0);
      core->release(holder, now);
    }
    for (const auto& [node, uses] : ended) report(nodes[node], uses);
  }
};

}  // namespace

TEST_CASE("a search for moves among 10,000 GPUs does not keep the scheduler long") {
  LargePool pool;
  const pool::PoolState before = pool.core->view_pool();
  pool.core->request(++pool.streams, "a", on_one_host(8), {}, pool.now);
  const double start = thread_milliseconds();
  pool.core->schedule(pool.now);
  const double took = thread_milliseconds() - start;
  const uint64_t moves = pool.core->view_pool().counters().defragmentation_moves();
  std::printf("10,000 GPUs with %u leases: %.1f ms of CPU time, %u moves\n", before.leases(), took,
              static_cast<unsigned>(moves));
  CHECK(before.leases() > 12'000);
  CHECK(moves > 0);
  CHECK(took < 1'000);  // detects only large slowdowns: sanitizers are slower
}
