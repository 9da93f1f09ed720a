// Tests of GPUs whose UUID several nodes report (core/claims.h).
#include "scheduler/core/records.pb.h"
#include "tests/scheduler/core/pool.h"
#include "tests/support/catch.h"

using namespace gpupool;
using namespace gpupool::scheduler;

namespace {

// Registers node n2, which has gpu_uuid(2, 0) and falsely reports gpu_uuid(1, 0), a GPU of node n1.
Stream attend_squatter(TestPool& pool, uint64_t boot = 2) {
  pool::NodeReport report = first_report(2, boot, 2);
  report.mutable_inventory()->mutable_gpus(1)->set_uuid(gpu_uuid(1, 0));
  report.set_now_ms(pool.now);
  pool.core->register_node(++pool.streams, report, pool.now);
  pool.settle();
  return pool.streams;
}

pool::NodeState node(const TestPool& pool, const std::string& name) {
  return *pool.core->view_node(name);
}
bool is_open(const TestPool& pool, const std::string& name) {
  return node(pool, name).condition() == pool::NodeState::OPEN;
}
// Returns withheld_because of gpu_uuid(1, 0) on a node.
std::string withheld(const TestPool& pool, const std::string& name) {
  const pool::NodeState state = node(pool, name);
  for (const auto& gpu : state.gpus()) {
    if (gpu.uuid() == gpu_uuid(1, 0)) return gpu.withheld_because();
  }
  return "not reported";
}
bool noted(const TestPool& pool, const std::string& event, const std::string& name) {
  return std::any_of(pool.published.notes.begin(), pool.published.notes.end(), [&](const Note& note) {
    return note.event == event && note.fields.front().second == name;
  });
}

// Requests leases until one is not granted; returns the granted nodes and GPUs.
std::vector<std::string> grants(TestPool& pool) {
  std::vector<std::string> all;
  while (all.size() < 8) {
    const Stream holder = pool.request(ask(1));
    const Grant* const grant = pool.grant(holder);
    if (!grant) {
      pool.core->release(holder, pool.now);
      pool.settle();
      return all;
    }
    all.push_back(
        grant->servers[0].lease.node() + ":" +
        (grant->servers[0].lease.shares(0).gpu_uuid() == gpu_uuid(1, 0) ? "the disputed GPU" : "another"));
  }
  return all;
}

using Words = std::vector<std::string>;

}  // namespace

TEST_CASE("a false claim of a GPU withholds only that GPU until an operator decides") {
  for (const bool real_placement : {false, true}) {
    TestPool pool(real_placement);
    attend_squatter(pool);
    pool.pass(1000);
    const Stream honest = pool.register_node(1, 1, 2);
    CHECK(is_open(pool, "n1"));
    CHECK(is_open(pool, "n2"));
    CHECK(
        withheld(pool, "n1").starts_with(gpu_uuid(1, 0) + " gets no leases: node 'n2' reports it as well; "));
    CHECK(
        withheld(pool, "n2").starts_with(gpu_uuid(1, 0) + " gets no leases: node 'n1' reports it as well; "));
    CHECK(node(pool, "n1").because() == withheld(pool, "n1"));
    CHECK(noted(pool, "gpu_withheld", "n1"));
    CHECK(noted(pool, "gpu_withheld", "n2"));
    CHECK(pool.core->view_pool().gpus_withheld() == 2);
    Words given = grants(pool);
    std::sort(given.begin(), given.end());
    CHECK(given == Words{"n1:another", "n2:another"});

    CHECK(!pool.core->trust_gpu("n3", gpu_uuid(1, 0), pool.now));
    CHECK(!pool.core->trust_gpu("n1", gpu_uuid(2, 0), pool.now));
    REQUIRE(pool.core->trust_gpu("n1", gpu_uuid(1, 0), pool.now));
    pool.settle();
    CHECK(withheld(pool, "n1").empty());
    CHECK(node(pool, "n1").because().empty());
    CHECK(withheld(pool, "n2") ==
          gpu_uuid(1, 0) + " gets no leases on this node: an operator assigned it to node 'n1'");
    CHECK(pool.core->view_pool().gpus_withheld() == 1);
    CHECK(grants(pool) == Words{"n1:the disputed GPU"});

    pool.core->node_disconnected(honest, pool.now);
    pool.start();  // the decision is stored
    attend_squatter(pool, 3);
    pool.register_node(1, 4, 2);
    CHECK(withheld(pool, "n1").empty());
    CHECK(!withheld(pool, "n2").empty());
  }
}

TEST_CASE("a GPU claim older than an hour wins over a later claim") {
  TestPool pool;
  const Stream honest = pool.register_node(1, 1, 1);
  pool.suspend_for(kHour);
  pool.core->node_disconnected(honest, pool.now);
  pool.register_node(1, 2, 1);  // the claim keeps its age
  attend_squatter(pool);
  CHECK(withheld(pool, "n1").empty());
  CHECK(withheld(pool, "n2")
            .starts_with(gpu_uuid(1, 0) + " gets no leases on this node: node 'n1' reported it earlier; "));
  CHECK(is_open(pool, "n2"));
  CHECK(grants(pool) == Words{"n1:the disputed GPU", "n2:another"});
  SECTION("also to the next scheduler, whichever it hears first") {
    pool.start();
    attend_squatter(pool, 3);
    CHECK(!withheld(pool, "n2").empty());
    CHECK(withheld(pool, "n1").empty());
  }
  SECTION("until an operator gives it to the other, where it was moved to") {
    REQUIRE(pool.core->trust_gpu("n2", gpu_uuid(1, 0), pool.now));
    pool.settle();
    CHECK(withheld(pool, "n2").empty());
    CHECK(!withheld(pool, "n1").empty());
    REQUIRE(pool.core->trust_gpu("n1", gpu_uuid(1, 0), pool.now));  // and back again
    pool.settle();
    CHECK(withheld(pool, "n1").empty());
    CHECK(!withheld(pool, "n2").empty());
  }
}

TEST_CASE("a disputed GPU is leased again after the other claim ends") {
  TestPool pool;
  pool.register_node(1, 1, 1);
  const Stream squatter = attend_squatter(pool);
  CHECK(grants(pool) == Words{"n2:another"});
  SECTION("it is another process with other GPUs") {
    pool.core->node_disconnected(squatter, pool.now);
    pool.register_node(2, 3, 1);
  }
  SECTION("an operator removes it") {
    pool.core->node_disconnected(squatter, pool.now);
    REQUIRE(pool.core->remove_node("n2", pool.now));
    pool.settle();
  }
  CHECK(withheld(pool, "n1").empty());
  CHECK(noted(pool, "gpu_not_withheld", "n1"));
  CHECK(pool.core->view_pool().gpus_withheld() == 0);
  CHECK(grants(pool).front() == "n1:the disputed GPU");
}

TEST_CASE("a lease on a disputed GPU continues and its share is withheld afterwards") {
  TestPool pool;
  const Stream honest = pool.register_node(1, 1, 1);
  const Stream holder = pool.request(ask(1, 500));
  const LeaseId id = pool.grant(holder)->lease;
  attend_squatter(pool);
  CHECK(!pool.last_message<pool::Ended>(holder));
  CHECK(pool.orders(honest).end_size() == 0);
  const Stream waits = pool.request(ask(1, 500));  // n2 also has an undisputed GPU
  CHECK(pool.grant(waits)->servers[0].lease.node() == "n2");
  pool.core->release(holder, pool.now);
  pool.settle();
  pool.report(honest, {{id, 0}});
  CHECK(pool.leased_milli() == 500);
  const Stream whole = pool.request(ask(1));
  CHECK(!pool.grant(whole));
  REQUIRE(pool.core->trust_gpu("n1", gpu_uuid(1, 0), pool.now));
  pool.settle();
  CHECK(pool.grant(whole));
}

TEST_CASE("a request for a disputed GPU waits and its reason names the dispute") {
  TestPool pool;
  const Stream honest = pool.register_node(1, 1, 1);
  const Stream holder = pool.request(ask(1));
  REQUIRE(pool.grant(holder));
  const Stream waits = pool.request(ask(1));
  pool::NodeReport report = first_report(2, 2, 1);
  report.mutable_inventory()->mutable_gpus(0)->set_uuid(gpu_uuid(1, 0));
  const Stream squatter = ++pool.streams;
  pool.core->register_node(squatter, report, pool.now);
  for (int i = 0; i < 12; ++i)
    pool.pass(1000), pool.report(honest, {{pool.grant(holder)->lease, 1}}), pool.report(squatter);
  CHECK(!pool.last_message<Refusal>(waits));
  CHECK(pool.core->why("q2", pool.now)->at(2) ==
        "waits for 1 GPU: 0 can be leased now; n1 has a GPU that another node reports as well, n2 has a GPU "
        "that another node reports as well");
}

TEST_CASE("claims stored without a time count as the oldest") {
  TestPool pool;
  pool.suspend_for(kHour);
  pool.register_node(1, 1, 1);
  std::string& stored = pool.store.at("node/n1");
  NodeRecord record;
  REQUIRE(record.ParseFromString(stored));
  REQUIRE(record.claims_size() == 1);
  record.clear_claims();
  stored = record.SerializeAsString();
  pool.start();
  attend_squatter(pool);
  CHECK(withheld(pool, "n1").empty());
  CHECK(!withheld(pool, "n2").empty());
}
