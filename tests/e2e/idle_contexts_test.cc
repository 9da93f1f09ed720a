// poold --idle-contexts: idle workers hold a context, and sessions are the same as without.
#include "tests/e2e/pool.h"
#include "tests/e2e/pool_admin.h"
#include "tests/support/catch.h"
#include "tests/support/processes.h"
#include "tests/support/raw_client.h"

using namespace gpupool::testing;

namespace {

constexpr uint64_t kContextBytes = 16 << 20;
const Environment kGpu{{"SOFTGPU_CONTEXT_MEMORY", "16MiB"}};

struct WithIdleContexts : Pool {
  explicit WithIdleContexts(const Environment& gpu = kGpu)
      : Pool(gpu, {"--idle-contexts", "yes", "--idle-workers", "1"}) {}
};

// Returns the bytes of a program's GPU memory that count in its quota, as pool-admin shows them.
uint64_t used_by_a_program(Pool& pool) {
  Process app({driver_app(), "counting", "1000000", "4000"}, pool.through());
  REQUIRE(app.await_output("working"));
  const Json sessions = sessions_of(pool);
  REQUIRE(sessions.size() == 1);
  return sessions[0]["gpus"][0]["memory_used_bytes"].get<uint64_t>();
}

}  // namespace

TEST_CASE("an idle worker holds a context that its session gets") {
  Pool without(kGpu, {"--idle-workers", "1"});
  WithIdleContexts with;
  const uint64_t free = free_bytes(without);
  // Beside the session that asks, the next worker has its context already.
  CHECK(eventually([&] { return free_bytes(with) == free - kContextBytes; }));
}

TEST_CASE("a session's memory is counted with a context that was there before") {
  Pool without(kGpu);
  WithIdleContexts with;
  const uint64_t used = used_by_a_program(without);
  CHECK(used >= kContextBytes);
  CHECK(used_by_a_program(with) == used);
}

TEST_CASE("a session pays for the context that was there before from its beginning") {
  WithIdleContexts pool;
  RawClient client(pool.poold().endpoint());
  client.open();
  CHECK(eventually([&] {
    const Json sessions = sessions_of(pool);
    return sessions.size() == 1 && sessions[0]["gpus"][0]["memory_used_bytes"] == kContextBytes;
  }));
}

TEST_CASE("programs with any contexts pass in a worker that has one") {
  WithIdleContexts pool({{"SOFTGPU_CONTEXT_MEMORY", "16MiB"}, {"SOFTGPU_DEVICES", "2"}});
  for (const char* scenario : {"reset_and_use_again", "two_contexts", "two_devices", "green_contexts"}) {
    INFO(scenario);
    const Finished finished = run_patiently({driver_app(), scenario}, pool.through());
    INFO(finished.output);
    CHECK(finished.status == 0);
  }
  // A program that uses the second device only leaves no context on the first one.
  Process app({driver_app(), "counting", "1000000", "4000"}, pool.through({{"CUDA_VISIBLE_DEVICES", "1"}}));
  REQUIRE(app.await_output("working"));
  Pool alone({{"SOFTGPU_CONTEXT_MEMORY", "16MiB"}, {"SOFTGPU_DEVICES", "2"}}, {"--idle-workers", "1"});
  const uint64_t free = free_bytes(alone);
  CHECK(eventually([&] { return free_bytes(pool) == free - kContextBytes; }));  // the next worker's
}
