// Tests that nobody without a token fills the memory that the scheduler has for all calls with a message.
#include <grpcpp/grpcpp.h>

#include "tests/scheduler/service/clients.h"
#include "tests/scheduler/service/scheduler_process.h"
#include "tests/support/catch.h"
#include "tests/support/peak_memory.h"
#include "tests/support/raw_grpc.h"

using namespace gpupool;
using namespace gpupool::testing;

namespace {

constexpr uint64_t kMib = 1 << 20;
// HASH stands for the SHA-256 of the token, which is 64 times the letter c.
constexpr const char* kConfiguration =
    "[[tenant]]\nname = 'a'\ntokens = ['sha256:HASH']\nquota = { gpus = 1 }\n";

std::string configuration() {
  std::string text = kConfiguration;
  const Finished done =
      run_to_end({"sh", "-c", "printf %s " + std::string(64, 'c') + " | sha256sum | cut -c1-64"});
  return text.replace(text.find("HASH"), 4, done.output.substr(0, 64));
}

uint16_t port_of(const SchedulerProcess& scheduler) {
  return static_cast<uint16_t>(std::stoul(scheduler.address().substr(scheduler.address().rfind(':') + 1)));
}

}  // namespace

TEST_CASE("a message of a caller without a token is not received") {
  const TemporaryFolder folder;
  SchedulerProcess scheduler({"--config", folder.write("pool.toml", configuration())});
  const uint64_t before = peak_memory(scheduler.process().pid());
  for (const char* const method : {"/gpupool.pool.PoolAdmin/GetPool", "/gpupool.pool.PoolAdmin/SetPolicy",
                                   "/gpupool.pool.PoolAdmin/Watch", "/gpupool.pool.Leases/Acquire",
                                   "/gpupool.pool.Nodes/Attend", "/gpupool.pool.Nodes/Unknown"}) {
    CAPTURE(method);
    RawGrpc caller = RawGrpc::connect(port_of(scheduler));
    caller.call(method, UINT32_MAX);
    const uint64_t accepted = caller.send(100 * kMib);
    CAPTURE(accepted);
    CHECK(caller.refused());
    CHECK(accepted < 20 * kMib);
  }
  CHECK(peak_memory(scheduler.process().pid()) - before < 100 * kMib);
}

TEST_CASE("many calls with unfinished messages take a bounded amount of memory and the scheduler goes on") {
  SchedulerProcess scheduler;  // without tokens, on loopback
  SimulatedPoolds poolds(scheduler.address(), 1, 1);
  REQUIRE(poolds.await());
  const pid_t process = scheduler.process().pid();
  const uint64_t before = peak_memory(process);
  {
    RawGrpc caller = RawGrpc::connect(port_of(scheduler));
    for (int call = 0; call < 4; ++call) caller.call("/gpupool.pool.Leases/Acquire", UINT32_MAX);
    const uint64_t accepted = caller.send(3000 * kMib);
    CAPTURE(accepted);
    CHECK(accepted < 3000 * kMib);
  }
  CHECK(peak_memory(process) - before < 2000 * kMib);
  CHECK(eventually([&] { return poolds[0].is_registered(); }));
  CHECK(eventually(
      [&] { return LeaseClient(connect(scheduler.address()), request_call(1, 1000)).granted() != nullptr; }));
}
