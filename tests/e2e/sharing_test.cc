// Programs that share a GPU: turns are taken, returned and revoked, and no program waits for work that cannot
// come. Shares are measured as GPU time accounted by poold, not as elapsed time; one test counts completed
// kernels, as gpupool-bench --suite sharing does.
#include <chrono>
#include <csignal>
#include <functional>
#include <memory>
#include <numeric>
#include <vector>

#include "tests/e2e/json.h"
#include "tests/e2e/shared_pool.h"

using namespace gpupool;
using namespace gpupool::testing;

namespace {

const std::string kForever = "600000", kKernel = "300000", kLongKernel = "3000000",
                  kVeryLongKernel = "30000000";
using Clock = std::chrono::steady_clock;
using Seconds = std::chrono::duration<double>;

Finished ask_poold(SharedPool& pool, std::vector<std::string> words) {
  words.insert(words.begin(),
               {program_path("pool-admin"), "--poold", "unix:" + pool->poold().admin_socket()});
  const Finished finished = run_to_end(words);
  INFO(finished.output);
  REQUIRE(finished.status == 0);
  return finished;
}

// poold's accounting for each tenant so far, in seconds: how long its work waited for its turn, and the GPU
// time that it used.
struct Books {
  struct Entry {
    double throttled, used;
  };
  Clock::time_point asked, answered;
  std::vector<Entry> tenants;
  double used() const {
    return std::accumulate(tenants.begin(), tenants.end(), 0.0,
                           [](double sum, const Entry& entry) { return sum + entry.used; });
  }
};
Books read_books(SharedPool& pool) {
  Books books;
  books.asked = Clock::now();
  const auto rows = parse_json(ask_poold(pool, {"--json", "tenants"}).output);
  books.answered = Clock::now();
  for (const auto& row : rows)
    books.tenants.push_back(
        {double(row["throttled_nanoseconds"]) * 1e-9, double(row["gpu_nanoseconds"]) * 1e-9});
  return books;
}

// Fractions of the elapsed time while the tenants used a given number of seconds of GPU time.
struct Parts {
  std::vector<double> granted;  // per tenant: time with the turn. The tenants are always busy, so this is the
                                // time that they did not wait.
  double used = 0;  // all tenants: time in which the GPU worked; less than granted if the host is busy
};
Parts parts_during(SharedPool& pool, double used) {
  const Books before = read_books(pool);
  Books after;
  REQUIRE(
      eventually([&] { return (after = read_books(pool)).used() >= before.used() + used; }, kLongPatience));
  const double passed =
      Seconds((after.asked - before.asked) + (after.answered - before.answered)).count() / 2;
  Parts parts;
  for (size_t i = 0; i < after.tenants.size(); ++i) {
    parts.granted.push_back(1 - (after.tenants[i].throttled - before.tenants[i].throttled) / passed);
  }
  parts.used = (after.used() - before.used()) / passed;
  UNSCOPED_INFO("in " << passed << " s: granted " << parts.granted[0] << ", used " << parts.used);
  return parts;
}

// True if `fits` accepts one of up to six windows, each of `used` seconds of GPU time. On a busy machine a
// program may submit its work late in any window, which looks like less than its share or more than its
// limit.
bool in_some_window(SharedPool& pool, double used, const std::function<bool(const Parts&)>& fits) {
  for (int windows = 0; windows < 6; ++windows) {
    if (fits(parts_during(pool, used))) return true;
  }
  return false;
}

}  // namespace

TEST_CASE("programs with every kind of wait go on beside a busy one") {
  SharedPool pool({"compute = 20", "compute = 80"});
  const auto rival = pool.start_working(2, {"keep_busy", kForever, kKernel});
  scenarios_pass(
      pool, 1,
      {"kernels_wait_for_each_other", "kernels_behind_a_wait_for_a_value", "events_order_streams",
       "host_functions_run_in_order", "stream_memory_operations", "null_stream_waits_for_blocking_streams",
       "async_readback", "two_contexts", "reset_and_use_again", "fault_then_reset"});
}

TEST_CASE("programs with every kind of wait go on behind a hard limit") {
  SharedPool pool(
      {"compute = 30\nmode = \"hard\"\npriority = \"best-effort\"", "priority = \"latency-critical\""});
  // Beside a session of higher priority, the limited programs run one piece of work at a time.
  const auto other = pool.start_working(2, {"idle_session"});
  scenarios_pass(pool, 1,
                 {"kernels_wait_for_each_other", "kernels_behind_a_wait_for_a_value",
                  "host_functions_run_in_order", "pinned_memory_is_read_in_stream_order",
                  "synchronous_copies_behind_late_ones", "threads_with_streams"});
}

TEST_CASE("two busy programs get their shares of the GPU's time") {
  SharedPool pool({"compute = 10", "compute = 90"});
  const auto large = pool.start_working(2, {"keep_busy", kForever, kLongKernel});
  const auto small = pool.start_working(1, {"keep_busy", kForever, kLongKernel});
  CHECK(in_some_window(pool, 4, [](const Parts& parts) {
    const double part = parts.granted[0] / (parts.granted[0] + parts.granted[1]);
    return part > 0.02 &&
           part < 0.15;  // on a busy host the small one is late for its turns, and the large one uses them
  }));
}

TEST_CASE("two busy programs get as much done as their shares say") {
  SharedPool pool({"compute = 10", "compute = 90"});
  const TemporaryFolder folder;
  const auto as_shared = [&](const std::string& go) {
    // Both run for the same time, so neither is ever alone, and their kernels are so long that a late program
    // hardly changes the result.
    const std::vector<std::string> program{"keep_busy", "12000", kVeryLongKernel, folder.path() / go};
    const auto large = pool.start_working(2, program);
    const auto small = pool.start_working(1, program);
    folder.write(go, "");
    const double of_small = done(*small), of_large = done(*large);
    UNSCOPED_INFO("kernels: " << of_small << " and " << of_large);
    return of_small > 0 && of_small / (of_small + of_large) < 0.2;  // may be below 0.02 on a busy host, as
                                                                    // above
  };
  CHECK((as_shared("go1") || as_shared("go2") || as_shared("go3")));
}

TEST_CASE("graphs that wait for their program take turns with a busy one") {
  SharedPool pool({"compute = 50", "compute = 50"});
  const auto rival = pool.start_working(2, {"keep_busy", kForever, kKernel});
  // If graphs did not yield their turn while they wait, about one would run per second.
  const auto graphs = pool.start_working(1, {"keep_busy_with_graphs", "30000", kKernel, "41"});
  CHECK(done(*graphs) >= 41);
  scenarios_pass(pool, 1,
                 {"captured_graph", "graph_with_host_memory", "graph_host_functions_in_order",
                  "graphs_beside_each_other"});
}

TEST_CASE("a hard limit holds and its end is felt at once") {
  SharedPool pool({"compute = 5\nmode = \"hard\""});
  const auto program = pool.start_working(1, {"keep_busy", kForever, kLongKernel});
  CHECK(in_some_window(
      pool, 0.25, [](const Parts& limited) { return limited.used < 0.055 && limited.granted[0] < 0.07; }));
  ask_poold(pool, {"quota", "set", "t1", "compute=100", "mode=elastic"});
  CHECK(in_some_window(pool, 2, [](const Parts& lifted) { return lifted.granted[0] > 0.9; }));
}

TEST_CASE("a hard limit of one GPU alone holds there and is lifted while a program works") {
  SharedPool pool({"compute = 80\nmode = \"hard\"\n[tenant.gpu.1]\ncompute = 5.5"},
                  {{"SOFTGPU_DEVICES", "2"}});
  const auto work_on = [&](const char* device) {
    Environment environment = pool.of(1);
    environment["CUDA_VISIBLE_DEVICES"] = device;
    auto process = std::make_unique<Process>(
        std::vector<std::string>{driver_app(), "keep_busy", kForever, kLongKernel}, environment);
    REQUIRE(process->await_output("working", kLongPatience));
    return process;
  };
  const auto has_80_percent = [](const Parts& parts) { return parts.granted[0] > 0.5 && parts.used < 0.85; };
  {
    const auto program = work_on("0");
    CHECK(in_some_window(pool, 2, has_80_percent));
  }
  REQUIRE(pool->poold().await_log("session_ended"));  // its last kernel counts until then
  const auto program = work_on("1");
  CHECK(in_some_window(
      pool, 0.25, [](const Parts& limited) { return limited.used < 0.06 && limited.granted[0] < 0.075; }));
  ask_poold(pool, {"quota", "set", "t1", "--gpu", "1", "default"});
  CHECK(in_some_window(pool, 2, has_80_percent));
}

TEST_CASE("a limit that is lifted lets go of a program that waits for its turn") {
  SharedPool pool({"compute = 1\nmode = \"hard\""});
  const auto limited = pool.start(1, {"keep_busy", kForever, kLongKernel});
  REQUIRE(limited->await_output("working", kLongPatience));
  // Each kernel uses up more than a second of its share, so the program waits now.
  ask_poold(pool, {"quota", "set", "t1", "compute=100", "mode=elastic"});
  CHECK(in_some_window(pool, 1, [](const Parts& lifted) { return lifted.granted[0] > 0.5; }));
  const auto other = pool.start(1, {"keep_busy", "300", kKernel});
  CHECK(done(*other) > 0);
}

TEST_CASE("a kernel that never ends does not keep other tenants from the device") {
  SharedPool pool({"compute = 90", "compute = 10"});
  const auto endless = pool.start_working(1, {"endless"});
  scenarios_pass(pool, 2, {"kernels_wait_for_each_other", "events_order_streams"});
  endless->signal(SIGKILL);
  CHECK(pool->poold().await_log("session_ended", 3));
  scenarios_pass(pool, 2, {"events_order_streams"});
}

TEST_CASE("a worker ends with its client while a driver call waits for a kernel that never ends") {
  SharedPool pool({"compute = 90"});
  const auto endless = pool.start_working(1, {"load_behind_an_endless_kernel"});
  REQUIRE(pool->poold().await_log("command_takes_long"));
  endless->signal(SIGKILL);
  CHECK(pool->poold().await_log("session_ended"));
}

TEST_CASE("a program that is killed while it waits for its turn leaves nothing in the way") {
  SharedPool pool({"compute = 1\nmode = \"hard\"", "compute = 50"});
  const auto throttled = pool.start_working(1, {"keep_busy", kForever, kLongKernel});
  throttled->signal(SIGKILL);
  CHECK(pool->poold().await_log("session_ended"));
  const auto other = pool.start_working(2, {"keep_busy", "300", kKernel});
  CHECK(done(*other) > 0);
}

TEST_CASE("a worker that is killed with the turn leaves it to the others") {
  SharedPool pool({"compute = 90", "compute = 10"});
  const auto holder = pool.start_working(1, {"keep_busy", kForever, kLongKernel});
  const auto other = pool.start_working(2, {"keep_busy", "1000", kKernel});
  CHECK(::kill(pool->worker_of(*holder), SIGKILL) == 0);
  CHECK(done(*other) > 0);
}

TEST_CASE("poold ends while a program waits for its turn") {
  SharedPool pool({"compute = 1\nmode = \"hard\""});
  const auto throttled = pool.start_working(1, {"keep_busy", kForever, kLongKernel});
  const auto start = std::chrono::steady_clock::now();
  CHECK(pool->poold().stop() == 0);
  CHECK(std::chrono::steady_clock::now() - start < std::chrono::seconds(20));
  CHECK(throttled->wait() != 0);
}
