// Copies and launches at the limits of the device's hardware queues, alone and beside another client.
#include <signal.h>

#include "common/sanitizers.h"
#include "tests/e2e/pool.h"
#include "tests/support/catch.h"
#include "tests/support/slow_link.h"

using namespace gpupool::testing;

namespace {

void copies_of(uint64_t bytes, const std::string& queue_entries) {
  Pool pool(Environment{{"SOFTGPU_MEMORY", "5GiB"}, {"SOFTGPU_QUEUE_ENTRIES", queue_entries}});
  const Finished app =
      run_patiently({driver_app(), "copies_of_one_size", std::to_string(bytes)}, pool.through());
  INFO(app.output);
  CHECK(app.status == 0);
}

}  // namespace

TEST_CASE("copies of 4 GiB with queues of 1024 entries") {
  copies_of(gpupool::kSanitized ? uint64_t{256} << 20 : uint64_t{4} << 30, "1024");
}
TEST_CASE("copies of 64 MiB with queues of 64 entries") {
  copies_of(uint64_t{64} << 20, "64");
}

// Each of these programs queues more behind a wait than a hardware queue holds.
TEST_CASE("a client is served beside full queues of others") {
  Pool pool(Environment{{"SOFTGPU_MEMORY", "2GiB"}});
  SlowLink link(pool.poold().endpoint(), {.bytes_per_second = 100e6});
  Process healthy({driver_app(), "healthy", "1"}, pool.through());
  REQUIRE(healthy.await_output("working"));
  Process copy({driver_app(), "launches_behind_a_large_copy", gpupool::kSanitized ? "67108864" : "536870912"},
               pool.through({{"GPUPOOL", link.url()}}));
  Process host_function({driver_app(), "launches_behind_a_host_function"}, pool.through());
  Process streams({driver_app(), "one_of_64_streams_waits"}, pool.through());
  for (Process* const app : {&host_function, &streams, &copy}) {
    const int status = app->wait(kLongPatience);
    app->signal(SIGKILL);
    app->await_end_of_output();
    INFO(app->output());
    CHECK(status == 0);
  }
  healthy.signal(SIGUSR1);
  CHECK(healthy.wait(kLongPatience) == 0);
  healthy.await_end_of_output();
  CHECK(lines_with(healthy.output(), "healthy for").size() == 1);
}
