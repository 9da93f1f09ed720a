// Sequences of many clients, and clients that are killed, leave no process, descriptor, file or memory
// behind. CLIENTS in the environment sets the length of the sequence.
#include <signal.h>

#include <cstdio>
#include <cstdlib>
#include <ostream>

#include "tests/e2e/pool.h"
#include "tests/support/catch.h"
#include "tests/support/raw_client.h"

using namespace gpupool;
using namespace gpupool::testing;

namespace {

// Programs on the client library; every other one is killed. After the first kWarmUp of them poold's memory
// may grow by kAllowedGrowth for each further one, and by kJitter. Sanitizers keep freed memory for a while.
constexpr int kClients = kSanitized ? 60 : 500, kWarmUp = kSanitized ? 12 : 200;
constexpr size_t kAllowedGrowth = kSanitized ? 700u << 10 : 1000, kJitter = 256 << 10;

int number_of_clients() {
  const char* const text = std::getenv("CLIENTS");
  return text != nullptr ? std::atoi(text) : kClients;
}

// Resources of poold while no client is connected.
struct Holdings {
  size_t workers, descriptors, files;
  bool operator==(const Holdings&) const = default;
  friend std::ostream& operator<<(std::ostream& out, const Holdings& held) {
    return out << held.workers << " workers, " << held.descriptors << " descriptors, " << held.files
               << " files";
  }
};
Holdings holdings(Pool& pool) {
  return {pool.poold().workers().size(), pool.poold().descriptors(), shared_files(pool.instance()).size()};
}

// Returns poold's resources after `sessions` sessions have ended and all workers are idle.
Holdings holdings_after(Pool& pool, size_t sessions) {
  REQUIRE(pool.poold().await_rest(sessions));
  return holdings(pool);
}

Process& start(std::vector<std::unique_ptr<Process>>& programs, Pool& pool,
               const std::vector<std::string>& scenario) {
  std::vector<std::string> words{driver_app()};
  words.insert(words.end(), scenario.begin(), scenario.end());
  programs.push_back(std::make_unique<Process>(words, pool.through()));
  return *programs.back();
}

}  // namespace

TEST_CASE("many clients one after another leave nothing behind") {
  Pool pool({}, kTellsOfWorkers);
  const uint64_t free_before = free_bytes(pool);
  REQUIRE(run_to_end({driver_app(), "short_life"}, pool.through()).status == 0);
  const Holdings before = holdings_after(pool, 2);
  size_t resident = 0;
  const int clients = number_of_clients();
  REQUIRE(clients > kWarmUp);
  for (int i = 0; i < clients; ++i) {
    if (i % 2 == 0)
      REQUIRE(run_to_end({driver_app(), "short_life"}, pool.through()).status == 0);
    else
      REQUIRE(run_to_end({driver_app(), "short_life", "killed"}, pool.through()).status == 128 + SIGKILL);
    if (i == kWarmUp) resident = resident_bytes(pool.poold().pid());
  }
  CHECK(eventually([&] { return holdings(pool) == before; }));
  const size_t allowed = static_cast<size_t>(clients - kWarmUp) * kAllowedGrowth + kJitter;
  const size_t resident_now = resident_bytes(pool.poold().pid());
  std::printf("poold's memory: %zu KiB, after %d clients %zu KiB\n", resident >> 10, clients,
              resident_now >> 10);
  CHECK(resident_now < resident + allowed);
  CHECK(eventually([&] { return free_bytes(pool) == free_before; }));
  CHECK(eventually([&] { return holdings(pool) == before; }));
  const std::string instance = pool.instance();
  CHECK(pool.poold().stop() == 0);
  CHECK(shared_files(instance).empty());
}

TEST_CASE("many clients at once") {
  Pool pool({}, kTellsOfWorkers);
  const uint64_t free_before = free_bytes(pool);
  REQUIRE(run_to_end({driver_app(), "bystander", "1"}, pool.through()).status ==
          0);  // its module remains in the image cache
  const Holdings before = holdings_after(pool, 2);
  std::vector<std::unique_ptr<Process>> programs;
  for (int i = 0; i < 32; ++i) start(programs, pool, {"bystander", "20"});
  for (auto& program : programs) {
    const int status = program->wait(kLongPatience);
    INFO(program->output());
    CHECK(status == 0);
  }
  CHECK(eventually([&] { return holdings(pool) == before; }));
  CHECK(eventually([&] { return free_bytes(pool) == free_before; }));
}

TEST_CASE("clients that are killed at work") {
  Pool pool;
  const uint64_t free_before = free_bytes(pool);
  for (const char* activity : {"read", "write", "launch", "kernel"}) {
    INFO("killed while it does " << activity);
    std::vector<std::unique_ptr<Process>> programs;
    Process& app = start(programs, pool, {"until_it_fails", activity});
    REQUIRE(app.await_output("working"));
    const pid_t worker = pool.worker_of(app);
    CHECK(free_bytes(pool) < free_before);
    app.signal(SIGKILL);
    CHECK(eventually([&] { return free_bytes(pool) == free_before; }));
    CHECK(await_gone(worker));
  }
}

TEST_CASE("a killed client's children do not hold its session") {
  Pool pool;
  const uint64_t free_before = free_bytes(pool);
  std::vector<std::unique_ptr<Process>> programs;
  Process& app = start(programs, pool, {"hold_memory", "forked"});
  REQUIRE(app.await_output("holding"));
  CHECK(free_bytes(pool) < free_before);
  const auto children = children_of(app.pid());
  REQUIRE(children.size() == 1);
  app.signal(SIGKILL);
  CHECK(eventually([&] { return free_bytes(pool) == free_before; }));
  REQUIRE(::kill(children[0], SIGKILL) == 0);  // the child still existed
}

TEST_CASE("a worker that is killed gives its memory back") {
  Pool pool;
  const uint64_t free_before = free_bytes(pool);
  std::vector<std::unique_ptr<Process>> programs;
  Process& app = start(programs, pool, {"hold_memory"});
  REQUIRE(app.await_output("holding"));
  CHECK(free_bytes(pool) < free_before);
  REQUIRE(::kill(pool.worker_of(app), SIGKILL) == 0);
  CHECK(eventually([&] { return free_bytes(pool) == free_before; }));
}
