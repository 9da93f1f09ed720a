// A real poold tells its scheduler of sessions that wait for their client.
#include "tests/server/poold/node/fake_scheduler.h"
#include "tests/support/catch.h"
#include "tests/support/lease_maker.h"
#include "tests/support/poold_process.h"
#include "tests/support/raw_client.h"

using namespace gpupool;
using namespace gpupool::testing;

TEST_CASE("sessions of a lease that wait for their client are reported") {
  FakeScheduler scheduler;
  LeaseMaker maker;
  const TemporaryFolder folder;
  std::vector<std::string> options = maker.options();
  options.insert(options.end(), {"--pool-scheduler", scheduler.address(), "--pool-token-file",
                                 folder.write_secret("token", "node-secret\n")});
  PooldProcess poold(FAKE_DEVICE_LIBRARY, options);
  REQUIRE(scheduler.await_report());
  const lease::Lease lease = maker.lease({scheduler.inventory().gpus(0).uuid()});
  hello::Hello hello = test_hello();
  hello.token = maker.token(lease);
  hello.can_resume = true;
  const auto await_waiting = [&](unsigned sessions, unsigned waiting) {
    return scheduler.await([&](const pool::NodeReport& report) {
      for (const pool::LeaseUse& use : report.leases()) {
        if (use.lease() != lease.id() || use.sessions() != sessions) continue;
        return use.breaks().waiting() == waiting && (use.breaks().waiting_ms() != 0) == (waiting != 0);
      }
      return false;
    });
  };
  RawClient away(poold.endpoint()), present(poold.endpoint());
  away.open(hello);
  present.open(hello);
  CHECK(await_waiting(2, 0));
  away.close();
  CHECK(await_waiting(2, 1));
}
