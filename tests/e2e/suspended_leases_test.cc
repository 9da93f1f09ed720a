// Leases that the scheduler of a whole pool suspends and resumes while their programs run.
#include <signal.h>

#include <fstream>

#include "tests/e2e/leased_program.h"

using namespace gpupool;
using namespace gpupool::testing;

namespace {

// A pool of two hosts with two GPUs each, which may suspend sessions.
struct SuspendingPool : WholePool {
  explicit SuspendingPool(const std::string& mebibytes = "512", const std::vector<std::string>& more = {})
      : WholePool({}, {}, options(mebibytes, more)) {}
  static std::vector<std::string> options(const std::string& mebibytes, std::vector<std::string> more) {
    more.insert(more.end(), {"--host-memory-for-suspended-mib", mebibytes, "--resume-timeout", "60"});
    return more;
  }
  // The leases in this state of suspension.
  std::vector<Json> leases_in(const std::string& state) const {
    std::vector<Json> found;
    for (const Json& lease : json_of(*this, {"leases"})) {
      if (!lease["suspension"].is_null() && lease["suspension"]["state"] == state) found.push_back(lease);
    }
    return found;
  }
  bool await_in(const std::string& state, size_t leases = 1) const {
    return eventually([&] { return leases_in(state).size() == leases; }, kLongPatience);
  }
  bool await_running(size_t leases) const {
    return eventually(
        [&] {
          const Json all = json_of(*this, {"leases"});
          return all.size() == leases && std::all_of(all.begin(), all.end(), [](const Json& lease) {
                   return lease["suspension"].is_null() && lease["ending"] == false;
                 });
        },
        kLongPatience);
  }
};

}  // namespace

TEST_CASE("a preempted program is suspended while an urgent one runs and goes on after it") {
  SuspendingPool pool;
  INFO(pool.pool_admin({"policy", "set", "preempt=suspend", "suspend=120", "token=10"}));
  std::vector<std::unique_ptr<Leased>> weak;
  for (int i = 0; i < 4; ++i)
    weak.push_back(std::make_unique<Leased>(pool, std::vector<std::string>{"--priority", "low"}));
  {
    Leased urgent(pool, {});
    const auto suspended = pool.leases_in("suspended");
    REQUIRE(suspended.size() == 1);
    CHECK(suspended[0]["priority"] == "low");
    CHECK(suspended[0]["suspension"]["sessions"] == 1);
    CHECK(suspended[0]["suspension"]["bytes"] >= 4 << 20);
    CHECK(suspended[0]["parts"][0]["allocated"] == false);
    CHECK(has(pool.pool_admin({"leases"}), "suspended, "));
    std::this_thread::sleep_for(std::chrono::seconds(12));  // its tokens have expired, and were renewed
    CHECK(pool.leases_in("suspended").size() == 1);
    urgent.expect_nothing_lost();
  }
  CHECK(pool.await_running(4));
  const Json counters = json_of(pool, {"health"})["counters"];
  CHECK(counters["suspensions_resumed"] == 1);
  CHECK(counters["suspensions_failed"] == 0);
  for (const auto& program : weak) program->expect_nothing_lost();
  CHECK(pool.is_idle());
}

TEST_CASE("a program goes on when an operator has suspended and resumed its lease") {
  SuspendingPool pool;
  Leased program(pool, {});
  const std::string lease = json_of(pool, {"leases"})[0]["id"];
  INFO(pool.pool_admin({"suspend", lease}));
  REQUIRE(pool.await_in("suspended"));
  CHECK(has(pool.pool_admin({"why", lease}), "held by an operator"));
  const std::string node = pool.leases_in("suspended")[0]["parts"][0]["node"];
  Pool& host = node == "one" ? pool.first() : pool.second();
  // Its GPUs may be another's, so poold's operator cannot resume it.
  const std::string session = std::to_string(sessions_of(host)[0]["number"].get<uint64_t>());
  const Finished refused = pool_admin(host, {"resume", session});
  CHECK(refused.status != 0);
  CHECK(has(refused.output, "belongs to a lease that the scheduler has suspended"));
  // All of the pool can be leased at once meanwhile.
  const Finished all = run_patiently(pool.command({"--gpus", "4"}, {driver_app(), "list_devices"}), {});
  INFO(all.output);
  CHECK(all.status == 0);
  INFO(pool.pool_admin({"resume", lease}));
  CHECK(pool.await_running(1));
  program.expect_nothing_lost();
  CHECK(pool.is_idle());
}

TEST_CASE("a program that starts under a suspended lease waits until it is resumed") {
  const TemporaryFolder folder;
  const std::string audit = folder.path() / "audit";  // of both hosts
  SuspendingPool pool("512", {"--audit-file", audit});
  const std::string begin = folder.path() / "begin";
  const std::string script =
      "until [ -e " + begin + " ]; do sleep 0.1; done; exec " + driver_app() + " copies";
  Process app(pool.command({"--compute", "20", "--memory", "48MiB"}, {"/bin/sh", "-c", script}), {});
  REQUIRE(eventually([&] { return json_of(pool, {"leases"}).size() == 1; }, kLongPatience));
  const std::string lease = json_of(pool, {"leases"})[0]["id"];
  INFO(pool.pool_admin({"suspend", lease}));
  REQUIRE(pool.await_in("suspended"));
  std::ofstream(begin) << "begin";
  REQUIRE(app.await_output("the program waits until then", kLongPatience));
  INFO(pool.pool_admin({"resume", lease}));
  expect_success(app, "copies: done");
  CHECK(pool.is_idle());
  const std::string audited = content_of(audit);
  CHECK(has(audited, "session_started"));
  CHECK_FALSE(has(audited, "denied"));
}

TEST_CASE("a session is suspended while its program connects to another server of the lease") {
  const TemporaryFolder folder;
  const std::string begin = folder.path() / "begin";
  SuspendingPool pool;
  const std::string script =
      "until [ -e " + begin + " ]; do sleep 0.1; done; exec " + driver_app() + " leased_work 3 1 7 10";
  Process app(pool.command({"--gpus", "4"}, {"/bin/sh", "-c", script}),
              {{"GPUPOOL_CONNECT_TIMEOUT_MS", "60000"}});
  REQUIRE(eventually([&] { return json_of(pool, {"leases"}).size() == 1; }, kLongPatience));
  const Json lease = json_of(pool, {"leases"})[0];
  REQUIRE(lease["parts"].size() == 2);
  const bool in_order = lease["parts"][0]["node"] == "one";
  Pool& first = in_order ? pool.first() : pool.second();
  Pool& other = in_order ? pool.second() : pool.first();
  // The other server accepts the program's connection, and answers when its workers go on.
  const auto has_idle_workers = [&] {
    return json_in(pool_admin(other, {"health"}))["workers_idle"] == other.poold().idle_workers();
  };
  REQUIRE(eventually(has_idle_workers, kLongPatience));
  const std::vector<pid_t> idle = other.poold().workers();
  for (const pid_t worker : idle) REQUIRE(::kill(worker, SIGSTOP) == 0);
  std::ofstream(begin) << "begin";
  REQUIRE(eventually([&] { return sessions_of(other).size() == 1; }, kLongPatience));
  const std::string id = lease["id"];
  INFO(pool.pool_admin({"policy", "set", "suspend=120"}));
  INFO(pool.pool_admin({"suspend", id}));
  REQUIRE(eventually(
      [&] {
        const Json seen = sessions_of(first);
        return seen.size() == 1 && seen[0]["state"] == "suspended";
      },
      kLongPatience));
  CHECK(pool.leases_in("suspending").size() == 1);
  for (const pid_t worker : idle) ::kill(worker, SIGCONT);
  REQUIRE(pool.await_in("suspended"));
  CHECK_FALSE(has(app.output(), "working"));
  INFO(pool.pool_admin({"resume", id}));
  CHECK(pool.await_running(1));
  expect_success(app, "working");
  CHECK(pool.is_idle());
}

TEST_CASE("a preempted program whose lease cannot be suspended ends with the reason") {
  SuspendingPool pool("1");  // MiB, less than the program has
  INFO(pool.pool_admin({"policy", "set", "preempt=suspend", "grace=1"}));
  std::vector<std::unique_ptr<Leased>> weak;
  for (int i = 0; i < 4; ++i)
    weak.push_back(std::make_unique<Leased>(pool, std::vector<std::string>{"--priority", "low"}));
  Leased urgent(pool, {});
  const auto ended = [&] {
    return std::any_of(weak.begin(), weak.end(),
                       [](const auto& one) { return has(one->app.output(), "could not be suspended"); });
  };
  CHECK(eventually(ended, kLongPatience));
  urgent.expect_nothing_lost();
}
