// A real poold refuses the clients of a lease that wait for a worker, when the lease ends.
#include "tests/server/poold/node/fake_scheduler.h"
#include "tests/support/catch.h"
#include "tests/support/lease_maker.h"
#include "tests/support/poold_process.h"
#include "tests/support/raw_client.h"
#include "tests/support/worker_gate.h"

using namespace gpupool;
using namespace gpupool::testing;

TEST_CASE("clients that wait for a worker are refused when their lease ends and others go on waiting") {
  FakeScheduler scheduler;
  LeaseMaker maker;
  const TemporaryFolder folder;
  const WorkerGate gate;
  std::vector<std::string> options = gate.options();
  const auto of_pool = maker.options();
  options.insert(options.end(), of_pool.begin(), of_pool.end());
  options.insert(options.end(), {"--pool-scheduler", scheduler.address(), "--pool-token-file",
                                 folder.write_secret("token", "node-secret\n")});
  PooldProcess poold(FAKE_DEVICE_LIBRARY, options, gate.environment());
  REQUIRE(scheduler.await_report());
  REQUIRE(poold.await_log("worker_ready"));
  gate.close();

  const std::string gpu = scheduler.inventory().gpus(0).uuid();
  const lease::Lease ending = maker.lease({gpu}), lasting = maker.lease({gpu});
  const auto with = [&](const lease::Lease& lease) {
    hello::Hello hello = test_hello();
    hello.token = maker.token(lease);
    return hello;
  };
  RawClient runs(poold.endpoint()), waits(poold.endpoint()), other(poold.endpoint());
  runs.open(with(ending));
  waits.send_hello(with(ending));
  other.send_hello(with(lasting));
  REQUIRE(scheduler.await_sessions(ending.id(), 2));
  REQUIRE(scheduler.await_sessions(lasting.id(), 1));
  scheduler.end(ending.id(), "preempted by tenant chemistry", 3'600'000);
  const auto refused = waits.receive_reply();
  CHECK(refused.status == hello::Status::denied);
  CHECK(refused.reason == "the lease has ended: preempted by tenant chemistry");
  CHECK(scheduler.await_sessions(ending.id(), 1));
  runs.ping();  // has the grace period

  gate.open();
  CHECK(other.receive_reply().status == hello::Status::ok);
  CHECK(poold.stop() == 0);
}
