// Every scenario of driver_app passes directly on the device and through poold, with the same output. The
// device is softgpu or that of GPUPOOL_TEST_DEVICE (tests/e2e/pool.h).
#include <signal.h>

#include "protocol/driver/cuda_header.h"
#include "tests/e2e/pool.h"
#include "tests/support/catch.h"
#include "tests/support/skip.h"
#include "tests/support/slow_link.h"

using namespace gpupool::testing;

namespace {

void passes_both_ways(const std::vector<std::string>& scenario, const Environment& softgpu = {},
                      const Environment& environment = {}) {
  INFO("scenario " << scenario.front());
  Pool pool(softgpu);
  const auto devices = softgpu.find("SOFTGPU_DEVICES");
  if (devices != softgpu.end() && count_devices(pool) < std::stoi(devices->second))
    return report_skip("needs " + devices->second + " devices");
  std::vector<std::string> words{driver_app()};
  words.insert(words.end(), scenario.begin(), scenario.end());
  const Finished direct = run_patiently(words, pool.directly(environment));
  INFO("directly: " << direct.output);
  const Finished pooled = run_patiently(words, pool.through(environment));
  INFO("through poold: " << pooled.output);
  CHECK(direct.status == 0);
  CHECK(pooled.status == 0);
  CHECK(pooled.output == direct.output);
}

// For scenarios that cannot run directly on softgpu.
std::string passes_through_poold(const std::vector<std::string>& scenario,
                                 const std::string& device = test_device()) {
  Pool pool({}, {}, device);
  std::vector<std::string> words{driver_app()};
  words.insert(words.end(), scenario.begin(), scenario.end());
  const Finished pooled = run_patiently(words, pool.through());
  INFO("through poold: " << pooled.output);
  CHECK(pooled.status == 0);
  return pooled.output;
}

// Bulk connections are used from the first copy on. Without the setting the client opens them in parallel to
// the first copy.
void passes_with_a_bulk_connection(const std::string& scenario) {
  passes_both_ways({scenario}, {}, {{"GPUPOOL_BULK_CONNECTIONS", "1"}});
}

// With a bandwidth limit, data stays in flight for a while and commands overtake it.
void passes_on_a_slow_link(const std::string& scenario) {
  Pool pool;
  SlowLink link(pool.poold().endpoint(), {.bytes_per_second = 100e6, .first_unlimited = true});
  const std::vector<std::string> words{driver_app(), scenario};
  const Finished direct = run_patiently(words, pool.directly());
  INFO("directly: " << direct.output);
  CHECK(direct.status == 0);
  const Finished slow =
      run_patiently(words, pool.through({{"GPUPOOL", link.url()}, {"GPUPOOL_BULK_CONNECTIONS", "1"}}));
  INFO("on a slow link: " << slow.output);
  CHECK(slow.status == 0);
}

enum class Directly { no, too };

// Runs the scenarios of large copies one after another on one poold. The device does not see which way a
// client's copies take, so a single test also runs them directly.
void large_copies(const std::string& connections, const Environment& server = {},
                  const std::string& compression = "auto", Directly directly = Directly::no) {
  std::vector<std::string> scenarios{"large_copies", "pinned_copies_of_every_shape"};
  // On NVIDIA's driver, copies block behind those of a stream that waits for a value.
  if (on_softgpu()) scenarios.push_back("large_copies_behind_a_stuck_stream");
  if (!over_rdma()) {  // rdma usually runs in the slow guest
    scenarios.insert(scenarios.end(),
                     {"large_asynchronous_copies", "large_boxes", "pinned_memory_comes_and_goes"});
  }
  Pool pool(server);
  const Environment client =
      pool.through({{"GPUPOOL_BULK_CONNECTIONS", connections}, {"GPUPOOL_COMPRESSION", compression}});
  std::vector<Environment> ways{client};
  if (directly == Directly::too) ways.push_back(pool.directly());
  for (const std::string& scenario : scenarios) {
    for (const Environment& way : ways) {
      const Finished app = run_patiently({driver_app(), scenario}, way);
      INFO(scenario << (&way == &ways[0] ? " through poold: " : " directly: ") << app.output);
      CHECK(app.status == 0);
      CHECK(app.output == scenario + ": done\n");
    }
  }
}

}  // namespace

#define PASSES(scenario, ...)                                 \
  TEST_CASE(#scenario) {                                      \
    passes_both_ways({#scenario} __VA_OPT__(, ) __VA_ARGS__); \
  }

PASSES(copies)
PASSES(fills)
PASSES(boxes)
PASSES(symbols)
PASSES(library_modules)
PASSES(exhaustion)
PASSES(free_memory_comes_back)
PASSES(many_small_allocations)
PASSES(events_order_streams)
PASSES(events_tell_progress)
PASSES(null_stream_waits_for_blocking_streams)
PASSES(host_functions_run_in_order)
PASSES(launches_behind_a_large_copy)
PASSES(a_graph_with_an_event_behind_a_late_copy)
PASSES(attributes_of_a_function_whose_launch_waits)
PASSES(a_synchronous_copy_on_a_stream_that_waits_for_a_value)
// These launches would block on the bounded queues of a local device, and the program could then not release
// the host function.
TEST_CASE("launches_behind_a_host_function") {
  passes_through_poold({"launches_behind_a_host_function"});
}
TEST_CASE("copies_behind_a_host_function") {
  passes_with_a_bulk_connection("copies_behind_a_host_function");
}
TEST_CASE("copies_of_a_stream_that_waits_for_a_value") {
  passes_with_a_bulk_connection("copies_of_a_stream_that_waits_for_a_value");
}
TEST_CASE("copies_behind_a_late_copy") {
  passes_with_a_bulk_connection("copies_behind_a_late_copy");
}
TEST_CASE("one_of_64_streams_waits") {
  passes_through_poold({"one_of_64_streams_waits"});
}
TEST_CASE("launches_behind_an_event_of_a_graph") {
  passes_through_poold({"launches_behind_an_event_of_a_graph"});
}
PASSES(synchronous_copies_behind_a_graph_that_copies)
PASSES(unload_behind_a_host_function)
PASSES(unload_behind_a_host_function_in_another_context)
PASSES(pinned_memory_is_read_in_stream_order)
PASSES(async_readback)
PASSES(pinned_memory_both_ways)
PASSES(pinned_memory_with_short_files)
PASSES(synchronous_copies_behind_late_ones)
PASSES(synchronous_copies_behind_writers_of_host_memory)
PASSES(threads_with_streams)
PASSES(per_thread_streams)
PASSES(stream_memory_operations)
PASSES(kernel_prints_in_order)
PASSES(captured_graph)
PASSES(captured_launch_attributes)
PASSES(graph_with_host_memory)
PASSES(graph_host_functions_in_order)
PASSES(graphs_beside_each_other)
PASSES(graph_with_programmatic_edges)
PASSES(captured_programmatic_launches)
PASSES(graph_by_hand)
PASSES(graph_update)
PASSES(graph_calls_beside_a_host_function)
PASSES(graph_events)
PASSES(graph_stream_memory_operations)
PASSES(graph_memory_nodes)
PASSES(calls_beside_a_capture)
PASSES(captures_that_fail)
PASSES(virtual_memory)
PASSES(managed_memory)
PASSES(managed_copies)
PASSES(managed_large_arrays)
PASSES(managed_small_objects)
PASSES(managed_memory_in_threads)
PASSES(managed_memory_of_streams)
PASSES(managed_memory_attached_while_the_device_is_at_it)
PASSES(managed_memory_of_a_stream_in_the_null_stream)
PASSES(managed_memory_and_signal_handlers)
PASSES(managed_memory_in_system_calls)
PASSES(registered_memory)
PASSES(registered_memory_used_by_both)
PASSES(registered_memory_and_its_address)
PASSES(managed_memory_in_host_functions_beside_late_copies)
PASSES(managed_memory_written_by_host_functions)
PASSES(managed_memory_read_by_host_functions)
PASSES(managed_memory_of_host_functions_in_graphs)
PASSES(managed_memory_written_after_a_synchronous_copy)
TEST_CASE("managed_memory_prefetched_behind_a_copy") {
  passes_on_a_slow_link("managed_memory_prefetched_behind_a_copy");
}
TEST_CASE("managed_memory_copied_beside_a_thread_that_waits") {
  passes_on_a_slow_link("managed_memory_copied_beside_a_thread_that_waits");
}
PASSES(registered_memory_in_front_of_a_kernel_that_waits)
PASSES(registered_memory_shown_to_kernels_behind_a_host_function)
PASSES(registered_memory_written_by_host_functions)
PASSES(managed_memory_in_graphs)
PASSES(managed_memory_says_what_it_is)
PASSES(mapped_pinned_memory)
PASSES(pinned_memory_given_to_kernels)
PASSES(stream_ordered_memory)
PASSES(pooled_memory_of_many_streams)
PASSES(memory_freed_in_the_null_stream)
PASSES(pooled_memory_in_threads)
PASSES(reset_and_use_again)
PASSES(two_contexts)
PASSES(green_contexts)
PASSES(two_devices, {{"SOFTGPU_DEVICES", "2"}})
PASSES(copies_of_another_device, {{"SOFTGPU_DEVICES", "2"}})
PASSES(graph_of_two_devices, {{"SOFTGPU_DEVICES", "2"}})
PASSES(capture_over_two_devices, {{"SOFTGPU_DEVICES", "2"}})
PASSES(frees_behind_the_legacy_stream)
PASSES(frees_beside_a_stream_that_waits)
PASSES(visible_devices, {{"SOFTGPU_DEVICES", "2"}}, {{"CUDA_VISIBLE_DEVICES", "1"}})
PASSES(no_visible_devices, {}, {{"CUDA_VISIBLE_DEVICES", ""}})
PASSES(fork_before_use)
// A forked child has no stacks of the driver's threads, which hold pointers to their objects.
PASSES(fork_after_use, {}, {{"ASAN_OPTIONS", "detect_leaks=0"}})
PASSES(exec_after_use)
PASSES(programs_started_by_one_at_work)
PASSES(forked_beside_threads_at_work, {}, {{"ASAN_OPTIONS", "detect_leaks=0"}})
PASSES(many_threads)
PASSES(interrupted_calls)
PASSES(freed_at_exit)
PASSES(exit_beside_threads_at_work)
PASSES(exit_without_cleanup)
PASSES(threads_come_and_go)
PASSES(library_closed_and_opened)
PASSES(illegal_address)
PASSES(trap)
TEST_CASE("callbacks_behind_a_trap") {
  passes_through_poold({"callbacks_behind_a_trap"});
}
PASSES(assertion)
TEST_CASE("fault_then_reset") {
  if (!on_softgpu()) return report_skip("NVIDIA's driver keeps a fault of a primary context after its reset");
  passes_both_ways({"fault_then_reset"});
}

TEST_CASE("a device that ignores wished addresses") {
  for (const char* scenario : {"copies", "virtual_memory", "managed_memory"})
    passes_both_ways({scenario}, {{"SOFTGPU_RULES", "+ignored_hints"}});
}
TEST_CASE("a graph that copies memory that is gone fails and the session goes on") {
  passes_through_poold({"graph_copies_memory_that_is_gone"});
}
TEST_CASE("memory of a pool passes between streams as its attributes say") {
  passes_through_poold({"pooled_memory_passes_between_streams"});
}
TEST_CASE("memory of a pool is freed with its context") {
  if (!on_softgpu()) return report_skip("the memory of NVIDIA's driver is freed later than the context");
  passes_through_poold({"pooled_memory_of_a_destroyed_context"});
}
TEST_CASE("multicast objects of a device that has them") {
  if (CUDA_VERSION < 12080) return report_skip("needs the headers of CUDA 12.8");
  passes_through_poold({"multicast_objects"}, RICH_DEVICE);
}
TEST_CASE("a device gets the edges that captured launches make") {
  if (CUDA_VERSION < 12080) return report_skip("needs the headers of CUDA 12.8");
  const std::string output = passes_through_poold({"captured_programmatic_launches"}, RICH_DEVICE);
  CHECK(lines_with(output, "an edge of port 1 and type 1").size() == 14);
  CHECK(lines_with(output, "an edge of port 2 and type 1").size() == 1);  // from a programmatic event
  CHECK(lines_with(output, "an edge of port 2 and type 0").size() == 1);  // from a launch completion event
}
TEST_CASE("decompression by a device that has the engine") {
  if (CUDA_VERSION < 12080) return report_skip("needs the headers of CUDA 12.8");
  passes_through_poold({"decompression"}, RICH_DEVICE);
}
TEST_CASE("graphs with large copies") {
  passes_both_ways({"graph_with_host_memory", "large"});
  passes_both_ways({"graph_with_host_memory", "large"}, {{"GPUPOOL_STAGING", "always"}},
                   {{"GPUPOOL_BULK_CONNECTIONS", "0"}});
}

TEST_CASE("softgpu says that SOFTGPU_MEMORY is ignored where its instance is in use") {
  if (!on_softgpu()) return report_skip("the device is not softgpu");
  Pool pool;
  Process working({driver_app(), "keep_busy_with_graphs", "600000", "1000"}, pool.directly());
  REQUIRE(working.await_output("working", kLongPatience));
  const auto complaints = [&](const Environment& environment) {
    const Finished finished = run_patiently({driver_app(), "symbols"}, pool.directly(environment));
    INFO(finished.output);
    CHECK(finished.status == 0);
    return lines_with(finished.output, "SOFTGPU_MEMORY=").size();
  };
  CHECK(complaints({}) == 0);
  CHECK(complaints({{"SOFTGPU_MEMORY", "128MiB"}}) == 1);
  working.signal(SIGKILL);
  working.wait();
}

TEST_CASE("large copies that are compressed") {
  large_copies("2", {}, "always");
  large_copies("1", {{"GPUPOOL_STAGING", "always"}}, "always");
}
TEST_CASE("large copies on one bulk connection") {
  large_copies("1");
}
TEST_CASE("large copies on three bulk connections") {
  large_copies("3", {}, "auto", Directly::too);
}
TEST_CASE("large copies without bulk connections") {
  large_copies("0");
}
TEST_CASE("large copies on a device that the CPU does not reach") {
  large_copies("3", {{"SOFTGPU_RULES", "+no_host_access"}});
}
TEST_CASE("large copies through staging memory") {
  large_copies("3", {{"GPUPOOL_STAGING", "always"}});
}
