// Tests of the programs pool-admin and pool-run with a real pool-scheduler and simulated poolds.
#include <signal.h>

#include <nlohmann/json.hpp>

#include "tests/scheduler/service/clients.h"
#include "tests/scheduler/service/scheduler_process.h"
#include "tests/support/catch.h"
#include "tests/support/has.h"
#include "tests/support/hostile_text.h"
#include "tests/support/http_get.h"
#include "tests/support/poold_process.h"

using namespace gpupool;
using namespace gpupool::testing;
using Json = nlohmann::json;

namespace {

Finished pool_admin(const SchedulerProcess& scheduler, std::vector<std::string> words) {
  words.insert(words.begin(), {program_path("pool-admin"), "--scheduler", scheduler.address()});
  return run_to_end(words);
}
Json json_of(const SchedulerProcess& scheduler, std::vector<std::string> words) {
  words.push_back("--json");
  const Finished finished = pool_admin(scheduler, words);
  INFO(finished.output);
  REQUIRE(finished.status == 0);
  return Json::parse(finished.output);
}

// Starts a program that holds a lease of `gpus` GPUs until it is killed.
std::unique_ptr<Process> program(const SchedulerProcess& scheduler, const std::string& gpus) {
  return std::make_unique<Process>(
      std::vector<std::string>{program_path("pool-run"), "--server", "pool://" + scheduler.address(),
                               "--gpus", gpus, "--", "sh", "-c", "echo has its GPUs; exec sleep 600"},
      Environment{});
}

}  // namespace

TEST_CASE("an operator lists leases and the queue and evicts") {
  SchedulerProcess scheduler({"--metrics", "127.0.0.1:0"});
  SimulatedPoolds poolds(scheduler.address(), 2, 2);
  REQUIRE(poolds.await());
  CHECK(pool_admin(scheduler, {"health"}).status == 0);
  CHECK(json_of(scheduler, {"nodes"}).size() == 2);
  CHECK(json_of(scheduler, {"gpus"}).size() == 4);

  const auto first = program(scheduler, "3");
  REQUIRE(first->await_output("has its GPUs"));
  const auto second = program(scheduler, "2");
  REQUIRE(second->await_output("waiting for 2 GPUs: position 1 of 1 in the queue"));
  const Json leases = json_of(scheduler, {"leases"}), queue = json_of(scheduler, {"queue"});
  REQUIRE(leases.size() == 1);
  REQUIRE(queue.size() == 1);
  CHECK(leases[0]["pid"] == first->pid());
  CHECK_FALSE(queue[0].contains("pid"));
  CHECK(queue[0]["request"]["pid"] == second->pid());
  CHECK_FALSE(pool_admin(scheduler, {"why", queue[0]["id"]}).output.empty());
  for (const char* const command : {"nodes", "gpus", "leases", "queue", "tenants"}) {
    const Finished shown = pool_admin(scheduler, {command});
    INFO(command << shown.output);
    CHECK(shown.status == 0);
    CHECK(has(shown.output, "default") ==
          (command != std::string("nodes") && command != std::string("gpus")));
  }
  const Finished top = pool_admin(scheduler, {"top", "--count", "2", "--interval", "0.1"});
  CHECK(top.status == 0);
  CHECK(has(top.output, "3 of 4 leased (75 %)"));

  REQUIRE(scheduler.await_log("url=http"));
  const uint16_t port = metrics_port(scheduler.log());
  CHECK(has(http_get(port, "/"), "<!doctype html>"));
  const std::string page = http_get(port, "/pool.json");
  const Json drawn = Json::parse(page.substr(page.find("\r\n\r\n") + 4));
  CHECK(drawn["pool"]["compute_milli_leased"] == 3000);

  const std::string id = leases[0]["id"];
  const Finished evicted =
      pool_admin(scheduler, {"evict", id.substr(0, 8), "--reason", "maintenance", "--grace", "0"});
  INFO(evicted.output);
  CHECK(evicted.status == 0);
  CHECK(first->await_output("maintenance"));
  CHECK(second->await_output("has its GPUs"));
  CHECK(pool_admin(scheduler, {"evict", "ffffffff"}).status == 1);

  second->signal(SIGTERM);
  second->wait();
  CHECK(eventually([&] { return json_of(scheduler, {"leases"}).empty(); }));
}

TEST_CASE("an operator moves leases") {
  SchedulerProcess scheduler;
  SimulatedPoolds poolds(scheduler.address(), 3, 1);
  REQUIRE(poolds.await());
  const auto first = program(scheduler, "1");
  REQUIRE(first->await_output("has its GPUs"));
  const Json before = json_of(scheduler, {"leases"})[0];
  const std::string id = before["id"], node = before["parts"][0]["node"];
  for (size_t i = 0; i < 3; ++i) poolds[i].allow_moves(false);
  const Finished refused = pool_admin(scheduler, {"move", id, "--to", node});
  CHECK(refused.status == 1);
  CHECK(has(refused.output, "cannot move lease " + id.substr(0, 8) + ": node '" + node + "': has a part"));
  CHECK(pool_admin(scheduler, {"move"}).status == 2);
  const std::string to = node == "n0" ? "n1" : "n0";
  const Finished moved = pool_admin(scheduler, {"move", id.substr(0, 8), "--to", to});
  INFO(moved.output);
  CHECK(moved.status == 0);
  CHECK(has(moved.output, ": moving to " + to + " (since "));
  CHECK(eventually([&] { return has(pool_admin(scheduler, {"leases"}).output, "it is stuck?[2J"); }));
  CHECK(has(pool_admin(scheduler, {"why", id}).output,
            "moving from node '" + node + "' to node '" + to + "' for "));
  CHECK(json_of(scheduler, {"leases", "--node", to}).size() == 1);
  for (size_t i = 0; i < 3; ++i) poolds[i].allow_moves(true);
  const auto place = [&] { return json_of(scheduler, {"leases"})[0]["parts"][0]["node"]; };
  CHECK(eventually([&] { return place() == to; }));

  const Finished drained =
      pool_admin(scheduler, {"drain", to, "--move", "--evict", "--grace", "600", "--reason", "new fans"});
  INFO(drained.output);
  CHECK(drained.status == 0);
  CHECK(has(drained.output, "1 lease to move, those still there in 600 s are evicted"));
  CHECK(eventually([&] { return place() != to; }));
  CHECK(eventually([&] { return json_of(scheduler, {"nodes"})[to == "n0" ? 0 : 1]["leases"] == 0; }));
  CHECK(json_of(scheduler, {"policy", "set", "move=90"})["move_ms"] == 90'000);
}

TEST_CASE("names of leased programs are escaped and truncated") {
  SchedulerProcess scheduler;
  SimulatedPoolds poolds(scheduler.address(), 1, 1);
  REQUIRE(poolds.await());
  pool::AcquireCall wish = request_call(1, 1000);
  wish.mutable_request()->set_program(kHostileText + std::string(900, 'p'));
  wish.mutable_request()->set_host(kHostileText + std::string(900, 'h'));
  wish.mutable_request()->add_labels(kHostileText);
  const auto channel = connect(scheduler.address());
  LeaseClient holder(channel, wish);
  REQUIRE(holder.granted());
  LeaseClient waiting(channel, wish);
  REQUIRE(waiting.queued(1));
  for (const std::vector<std::string>& command : std::vector<std::vector<std::string>>{
           {"leases"}, {"queue"}, {"top", "--count", "2", "--interval", "0.1"}}) {
    const Finished shown = pool_admin(scheduler, command);
    INFO(shown.output);
    CHECK(shown.status == 0);
    CHECK(has(shown.output, "?]0;owned?"));
    CHECK(is_harmless(shown.output));
    CHECK(shown.output.size() < 16 * 1024);
  }
  const std::string queue = json_of(scheduler, {"queue"}).dump(),
                    leases = json_of(scheduler, {"leases"}).dump();
  CHECK(is_harmless(queue));
  CHECK(is_harmless(leases));
  CHECK(has(queue, "?]0;owned?"));
}

TEST_CASE("quotas, the policy and drained nodes are changed and kept") {
  SchedulerProcess scheduler;
  SimulatedPoolds poolds(scheduler.address(), 2, 2);
  REQUIRE(poolds.await());
  CHECK(json_of(scheduler, {"quota", "set", "default", "gpus=1.5", "weight=7"})["default"]["compute_milli"] ==
        1500);
  CHECK(json_of(scheduler, {"policy", "set", "placement=spread", "grace=3"})["grace_ms"] == 3000);
  CHECK(has(pool_admin(scheduler, {"policy", "set", "placement=best"}).output,
            "unknown placement 'best'; valid: fragmentation, "));
  CHECK(pool_admin(scheduler, {"quota", "show", "nobody"}).status == 1);
  const std::string node = json_of(scheduler, {"nodes"})[0]["name"];
  CHECK(json_of(scheduler, {"drain", node, "--reason", "new fans"})["condition"] == "drained");
  CHECK(pool_admin(scheduler, {"drain", "nowhere"}).status == 1);
  const Finished refused = run_to_end(
      {program_path("pool-run"), "--server", "pool://" + scheduler.address(), "--gpus", "2", "true"});
  CHECK(refused.status == 125);
  INFO(refused.output);

  scheduler.kill();
  scheduler.start();
  CHECK(eventually([&] { return json_of(scheduler, {"health"})["nodes_open"] == 1; }));
  CHECK(json_of(scheduler, {"quota", "show"})["default"]["weight"] == 7);
  CHECK(json_of(scheduler, {"policy", "show"})["placement"] == "spread");
  CHECK(has(pool_admin(scheduler, {"nodes"}).output, "new fans"));
  CHECK(json_of(scheduler, {"undrain", node})["drained"] == false);
  CHECK(json_of(scheduler, {"quota", "clear", "default"})["default"]["compute_milli"].is_null());
  CHECK(eventually([&] { return json_of(scheduler, {"health"})["nodes_open"] == 2; }));
  CHECK(pool_admin(scheduler, {"nodes", "remove", node}).status == 1);  // it is connected
}
