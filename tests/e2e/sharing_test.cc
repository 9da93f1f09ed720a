// Programs that share a GPU: turns are taken, given back and taken away, and nobody waits for what cannot come. Shares are
// looked at coarsely here; gpupool-bench --suite sharing measures them.
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <memory>

#include "tests/e2e/shared_pool.h"

using namespace gpupool;
using namespace gpupool::testing;

namespace {

const std::string kForever = "600000", kKernel = "300000", kLongKernel = "3000000";

}  // namespace

TEST_CASE("programs with every kind of wait go on beside a busy one") {
  SharedPool pool({"compute = 20", "compute = 80"});
  const auto rival = pool.start_working(2, {"keep_busy", kForever, kKernel});
  scenarios_pass(pool, 1, {"kernels_wait_for_each_other", "kernels_behind_a_wait_for_a_value", "events_order_streams",
                           "host_functions_run_in_order", "stream_memory_operations", "null_stream_waits_for_blocking_streams",
                           "async_readback", "two_contexts", "reset_and_use_again", "fault_then_reset"});
}

TEST_CASE("programs with every kind of wait go on behind a hard limit") {
  SharedPool pool({"compute = 30\nmode = \"hard\"\npriority = \"best-effort\"", "priority = \"latency-critical\""});
  const auto other = pool.start_working(2, {"idle_session"});  // one piece of work at a time
  scenarios_pass(pool, 1, {"kernels_wait_for_each_other", "kernels_behind_a_wait_for_a_value", "host_functions_run_in_order",
                           "pinned_memory_is_read_in_stream_order", "synchronous_copies_behind_late_ones", "threads_with_streams"});
}

TEST_CASE("two busy programs get about their shares") {
  SharedPool pool({"compute = 10", "compute = 90"});
  const auto large = pool.start_working(2, {"keep_busy", "4000", kKernel});
  const auto small = pool.start_working(1, {"keep_busy", "3000", kKernel});
  const double few = done(*small);
  CHECK(done(*large) > 2.5 * few);  // equal shares: 1.3, as it runs longer
}

TEST_CASE("graphs that wait for their program take turns with a busy one") {
  SharedPool pool({"compute = 50", "compute = 50"});
  const auto rival = pool.start_working(2, {"keep_busy", kForever, kKernel});
  const auto graphs = pool.start_working(1, {"keep_busy_with_graphs", "4000", kKernel});
  const double launches = done(*graphs); INFO(launches); CHECK(launches > 40);  // without giving way while they wait: one or so in a second
  scenarios_pass(pool, 1, {"captured_graph", "graph_with_host_memory", "graph_host_functions_in_order", "graphs_beside_each_other"});
}

TEST_CASE("a hard limit holds and its end is felt at once") {
  SharedPool pool({"compute = 5\nmode = \"hard\""});
  const auto limited = pool.start_working(1, {"keep_busy", "2500", kKernel});
  const double few = done(*limited);
  const Finished changed = run_to_end({program_path("pool-admin"), "--poold", "unix:" + pool->poold().admin_socket(), "quota", "set", "t1", "compute=100", "mode=elastic"});
  INFO(changed.output);
  REQUIRE(changed.status == 0);
  const auto free = pool.start_working(1, {"keep_busy", "2500", kKernel});
  CHECK(done(*free) > 3 * few);
}

TEST_CASE("a hard limit of one GPU alone holds there and is lifted while a program works") {
  SharedPool pool({"compute = 80\nmode = \"hard\"\n[tenant.gpu.1]\ncompute = 5.5"}, {{"SOFTGPU_DEVICES", "2"}});
  const auto work_on = [&](const char* device) {
    Environment environment = pool.of(1);
    environment["CUDA_VISIBLE_DEVICES"] = device;
    auto process = std::make_unique<Process>(std::vector<std::string>{driver_app(), "keep_busy", "2500", kKernel}, environment);
    REQUIRE(process->await_output("working", kLongPatience));
    return process;
  };
  const double few = done(*work_on("1")), many = done(*work_on("0"));
  CHECK(many > 3 * few);
  const auto lifted = work_on("1");
  const Finished changed = run_to_end({program_path("pool-admin"), "--poold", "unix:" + pool->poold().admin_socket(), "quota", "set", "t1", "--gpu", "1", "default"});
  INFO(changed.output);
  REQUIRE(changed.status == 0);
  CHECK(done(*lifted) > 3 * few);
}

TEST_CASE("a limit that is lifted lets go of a program that waits for its turn") {
  SharedPool pool({"compute = 1\nmode = \"hard\""});
  const auto limited = pool.start(1, {"keep_busy", kForever, kLongKernel});
  REQUIRE(limited->await_output("working", kLongPatience));
  // Each kernel is worth a second and more of its share: it waits now.
  CHECK(run_to_end({program_path("pool-admin"), "--poold", "unix:" + pool->poold().admin_socket(), "quota", "set", "t1", "compute=100", "mode=elastic"}).status == 0);
  const auto start = std::chrono::steady_clock::now();
  const auto other = pool.start(1, {"keep_busy", "300", kKernel});
  CHECK(done(*other) > 0);
  CHECK(std::chrono::steady_clock::now() - start < std::chrono::seconds(60));
}

TEST_CASE("a kernel that never ends keeps nobody from the device") {
  SharedPool pool({"compute = 90", "compute = 10"});
  const auto endless = pool.start_working(1, {"endless"});
  scenarios_pass(pool, 2, {"kernels_wait_for_each_other", "events_order_streams"});
  endless->signal(SIGKILL);
  CHECK(pool->poold().await_log("session_ended", 3));
  scenarios_pass(pool, 2, {"events_order_streams"});
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
