// Programs that lease GPUs of a whole pool, and failures of the scheduler or of a GPU host.
#include <signal.h>

#include "tests/e2e/whole_pool.h"

using namespace gpupool;
using namespace gpupool::testing;

TEST_CASE("programs get GPUs of one host and of several and give them back") {
  WholePool pool;
  for (const auto& [gpus, lines] :
       std::vector<std::pair<std::string, size_t>>{{"1", 1}, {"2", 2}, {"3", 3}, {"4", 4}}) {
    const Finished app = run_patiently(pool.command({"--gpus", gpus}, {driver_app(), "list_devices"}), {});
    INFO(app.output);
    CHECK(app.status == 0);
    CHECK(lines_with(app.output, "GPU-").size() == lines);
  }
  const Finished copies =
      run_patiently(pool.command({"--gpus", "3"}, {driver_app(), "copies_between_devices"}), {});
  INFO(copies.output);
  CHECK(copies.status == 0);
  const Finished library = run_patiently(
      {driver_app(), "copies"},
      {{"LD_LIBRARY_PATH", client_folder()}, {"GPUPOOL", pool.url() + "?compute=50&memory=128MiB"}});
  INFO(library.output);
  CHECK(library.status == 0);
  const Finished never = run_to_end(pool.command({"--gpus", "5"}, {"true"}));
  CHECK(never.status == 125);
  CHECK(has(never.output, "5 GPUs"));
  CHECK(pool.is_idle());
  for (Pool* const host : {&pool.first(), &pool.second()})
    CHECK_FALSE(has(host->poold().log(), "session_killed"));
}

TEST_CASE("programs go on without a scheduler and the next scheduler knows their leases") {
  WholePool pool;
  Process app(pool.command({"--gpus", "4"}, {driver_app(), "hold_memory"}), {});
  REQUIRE(app.await_output("holding"));
  pool.scheduler().kill();
  REQUIRE(app.await_output("lost the connection to scheduler"));
  CHECK(run_to_end({"kill", "-0", std::to_string(app.pid())}).status == 0);
  pool.scheduler().start();
  REQUIRE(app.await_output("reconnected to the scheduler"));
  CHECK(eventually([&] { return has(pool.pool_admin({"leases"}), "held"); }));
  CHECK(has(pool.pool_admin({"leases"}), "driver_app"));

  Process next(pool.command({"--gpus", "1"}, {driver_app(), "list_devices"}), {});
  CHECK(next.await_output("waiting for 1 GPU"));  // the GPUs in use are not granted again
  app.signal(SIGKILL);
  CHECK(next.wait(kLongPatience) == 0);
  CHECK(pool.is_idle());
}

TEST_CASE("a host that is shut down is shown as stopped") {
  WholePool pool;
  CHECK(pool.second().poold().stop() == 0);
  CHECK(eventually([&] { return has(pool.pool_admin({"nodes"}), " stopped "); }));
  CHECK(has(pool.pool_admin({"nodes"}), "poold was shut down"));
  Process waits(pool.command({"--gpus", "3"}, {"true"}), {});
  CHECK(waits.await_output("2 can be leased now; two is stopped (poold was shut down)"));
  waits.signal(SIGTERM);
  waits.wait();
}

TEST_CASE("a host that dies takes its lease along and no other") {
  WholePool pool;
  Process one(pool.command({"--gpus", "2", "--one-host"}, {driver_app(), "until_it_fails", "kernel"}), {});
  REQUIRE(one.await_output("working"));
  Process other(pool.command({"--gpus", "2", "--one-host"}, {driver_app(), "hold_memory"}), {});
  REQUIRE(other.await_output("holding"));
  Pool& dies = has(pool.first().poold().log(), "until_it_fails") ||
                       has(pool.first().poold().log(), " pid=" + std::to_string(one.pid()) + " ")
                   ? pool.first()
                   : pool.second();
  dies.poold().process().signal(SIGKILL);
  CHECK(one.wait(kLongPatience) == 0);  // the program expects its calls to fail
  CHECK(eventually([&] { return has(pool.pool_admin({"health"}), "1 open"); }));
  CHECK(has(pool.pool_admin({"leases"}), "held"));
  CHECK(run_to_end({"kill", "-0", std::to_string(other.pid())}).status == 0);
}
