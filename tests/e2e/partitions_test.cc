// Tenants with a partition of the multiprocessors, on a softgpu of four threads: a worker's kernels run only
// on the threads of its session's partition.
#include <dirent.h>

#include <csignal>
#include <fstream>
#include <map>
#include <thread>

#include "tests/e2e/shared_pool.h"

using namespace gpupool;
using namespace gpupool::testing;

namespace {

const Environment kFour{{"SOFTGPU_THREADS", "4"}};
const std::string kHalf = "mode = \"partition\"\ncompute = 50",
                  kQuarter = "mode = \"partition\"\ncompute = 25";

// Returns the CPU time in nanoseconds of each thread that runs a worker's kernels, by thread id.
std::map<std::string, uint64_t> executor_time(pid_t worker) {
  std::map<std::string, uint64_t> times;
  const std::string tasks = "/proc/" + std::to_string(worker) + "/task/";
  DIR* const folder = opendir(tasks.c_str());
  REQUIRE(folder != nullptr);
  while (const dirent* const task = readdir(folder)) {
    std::string name;
    uint64_t time = 0;
    std::ifstream(tasks + task->d_name + "/comm") >> name;
    std::ifstream(tasks + task->d_name + "/schedstat") >> time;
    if (name == "softgpu") times[task->d_name] = time;
  }
  closedir(folder);
  return times;
}

struct Seen {
  std::string said;    // number of multiprocessors and grid size that the program printed
  size_t threads = 0;  // threads that did at least a twentieth of the work
};

// Starts a program, waits until its kernels have used 0.3 s of CPU time, and kills it.
Seen look_at(SharedPool& pool, size_t tenant) {
  const auto program = pool.start_working(tenant, {"fill_the_device", "60000"});
  const pid_t worker = pool->worker_of(*program);
  constexpr uint64_t kEnough = 300'000'000;  // nanoseconds
  std::map<std::string, uint64_t> times;
  uint64_t all = 0;
  const auto end = std::chrono::steady_clock::now() + kLongPatience;
  while (all < kEnough && std::chrono::steady_clock::now() < end) {
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
    times = executor_time(worker);
    all = 0;
    for (const auto& [thread, time] : times) all += time;
  }
  program->signal(SIGKILL);
  CHECK(all >= kEnough);
  CHECK(times.size() >= 2);
  Seen seen;
  for (const auto& [thread, time] : times) seen.threads += time > all / 20;
  seen.said = program->output().substr(program->output().find("multiprocessors"));
  seen.said = seen.said.substr(0, seen.said.find('\n'));
  return seen;
}

Finished set_quota(SharedPool& pool, const std::string& tenant, const std::vector<std::string>& words) {
  std::vector<std::string> all{
      program_path("pool-admin"), "--poold", "unix:" + pool->poold().admin_socket(), "quota", "set", tenant};
  all.insert(all.end(), words.begin(), words.end());
  return run_to_end(all);
}

}  // namespace

TEST_CASE("programs run on the multiprocessors of their tenants") {
  SharedPool pool({kHalf, kQuarter, "compute = 100"}, kFour);
  const Seen half = look_at(pool, 1), quarter = look_at(pool, 2), rest = look_at(pool, 3);
  CHECK(half.said == "multiprocessors 2 grid 4");
  CHECK(half.threads <= 2);
  CHECK(quarter.said == "multiprocessors 1 grid 2");
  CHECK(quarter.threads == 1);
  CHECK(rest.said == "multiprocessors 1 grid 2");  // the unassigned multiprocessor
  CHECK(rest.threads == 1);
}

TEST_CASE("programs of all kinds run in a partition beside busy ones") {
  SharedPool pool({kHalf, kQuarter, "compute = 100"}, kFour);
  const auto neighbour = pool.start_working(2, {"keep_busy", "600000", "300000"});
  const auto other = pool.start_working(3, {"keep_busy", "600000", "300000"});
  scenarios_pass(
      pool, 1,
      {"kernels_wait_for_each_other", "kernels_behind_a_wait_for_a_value", "events_order_streams",
       "host_functions_run_in_order", "stream_memory_operations", "null_stream_waits_for_blocking_streams",
       "async_readback", "two_contexts", "green_contexts", "reset_and_use_again", "fault_then_reset",
       "threads_with_streams", "pinned_memory_is_read_in_stream_order", "synchronous_copies_behind_late_ones",
       "captured_graph", "graph_by_hand", "graph_memory_nodes"});
}

TEST_CASE("an endless kernel in a partition holds up no other tenant") {
  SharedPool pool({kHalf, kQuarter, "compute = 100"}, kFour);
  const auto endless = pool.start_working(1, {"endless"});
  scenarios_pass(pool, 2, {"events_order_streams"});
  scenarios_pass(pool, 3, {"events_order_streams"});
}

TEST_CASE("a partition is changed for the programs that start afterwards") {
  SharedPool pool({kHalf, "compute = 100"}, kFour);
  const auto before = pool.start_working(1, {"idle_session"});
  const Finished changed = set_quota(pool, "t1", {"compute=75"});
  INFO(changed.output);
  REQUIRE(changed.status == 0);
  CHECK(look_at(pool, 1).said == "multiprocessors 3 grid 6");
  REQUIRE(set_quota(pool, "t1", {"mode=elastic"}).status == 0);
  before->signal(SIGKILL);
  CHECK(pool->poold().await_log("session_ended", 2));
  CHECK(look_at(pool, 1).said == "multiprocessors 4 grid 8");
  const Finished refused = set_quota(pool, "t2", {"mode=partition", "compute=101"});
  CHECK(refused.status != 0);
}

TEST_CASE("programs without room for their partition are told so") {
  SharedPool pool({kQuarter, kQuarter, kQuarter, "compute = 10"}, {{"SOFTGPU_THREADS", "2"}});
  CHECK(look_at(pool, 2).said == "multiprocessors 1 grid 2");
  for (const size_t tenant : {3, 4}) {
    const auto refused = pool.start(tenant, {"fill_the_device", "10"});
    CHECK(refused->wait(kLongPatience) != 0);
  }
  CHECK(pool->poold().await_log("only 0 of the 2 of GPU 0 are free"));
  CHECK(pool->poold().await_log("no free multiprocessors: partitions of other tenants occupy GPU 0"));
}
