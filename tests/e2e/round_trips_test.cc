// Counts the round trips between client and poold, to show which calls wait for the server.
#include "tests/e2e/pool.h"
#include "tests/support/catch.h"
#include "tests/support/proxy.h"
#include "tests/support/skip.h"

using namespace gpupool::testing;

namespace {

uint64_t round_trips(Pool& pool, const std::string& scenario, const std::string& rounds) {
  Proxy proxy(pool.poold().endpoint());
  const Finished app =
      run_patiently({driver_app(), scenario, rounds}, pool.through({{"GPUPOOL", proxy.url()}}));
  INFO(app.output);
  CHECK(app.status == 0);
  return proxy.round_trips();
}

}  // namespace

TEST_CASE("asynchronous calls cost no round trip") {
  Pool pool;
  round_trips(pool, "asynchronous_calls", "0");  // afterwards the server has cached the module
  const uint64_t none = round_trips(pool, "asynchronous_calls", "0");
  CHECK(none > 0);
  CHECK(none < 16);  // module, two functions, three queries, an attribute, two waits, two mappings for the
                     // memory pool
  CHECK(round_trips(pool, "asynchronous_calls", "60") == none);
}

TEST_CASE("copies behind a refused launch of a graph cost no round trip") {
  Pool pool;
  const uint64_t few = round_trips(pool, "copies_behind_a_refused_launch", "1");
  // Each copy could add one round trip. On a busy machine some copies do: those before the client's thread
  // has seen that the host function will not be called.
  CHECK(round_trips(pool, "copies_behind_a_refused_launch", "600") < few + 300);
}

TEST_CASE("other parameters for nodes of a graph cost no round trip") {
  Pool pool;
  round_trips(pool, "parameters_of_graph_nodes", "0");  // afterwards the server has cached the module
  CHECK(round_trips(pool, "parameters_of_graph_nodes", "50") ==
        round_trips(pool, "parameters_of_graph_nodes", "0"));
}

TEST_CASE("contexts come and go without a round trip but for their memory") {
  Pool pool;
  CHECK(round_trips(pool, "contexts_without_waiting", "10") ==
        11);  // one for each context's memory, one for the last call, which waits
}

TEST_CASE("a program that only looks at its devices costs no round trip") {
  Pool pool;
  Proxy proxy(pool.poold().endpoint());
  CHECK(run_to_end({driver_app(), "initialise"}, pool.through({{"GPUPOOL", proxy.url()}})).status == 0);
  CHECK(proxy.round_trips() == 0);
}

TEST_CASE("a session on eight GPUs creates one context if its program uses one GPU") {
  if (!on_softgpu()) return report_skip("reads softgpu's log");
  Pool pool({{"SOFTGPU_DEVICES", "8"}, {"SOFTGPU_MEMORY", "128MiB"}, {"SOFTGPU_LOG", "1"}}, kTellsOfWorkers);
  const Finished app = run_patiently({driver_app(), "copies"}, pool.through());
  INFO(app.output);
  CHECK(app.status == 0);
  REQUIRE(pool.poold().await_rest(1));
  // The program's standard error has the log of its session, poold's log that of idle workers.
  const auto created = lines_with(app.output + pool.poold().log(), "softgpu: context created on device ");
  REQUIRE(created.size() == 1);
  CHECK(created.front() == "softgpu: context created on device 0");
}
