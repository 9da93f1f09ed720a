// A quick run of gpupool-bench: every figure is reported, round trips per step stay within the limit, and
// figures that depend on each other agree. Speeds are not checked, because machines differ.
#include <cstdio>
#include <fstream>
#include <sstream>

#include "tests/bench/quick_run.h"
#include "tests/support/catch.h"
#include "tests/support/poold_process.h"

using namespace gpupool::testing;

namespace {

std::string line_of(const std::string& json, const std::string& name) {
  const size_t at = json.find("{\"name\": \"" + name + "\"");
  return at == std::string::npos ? "" : json.substr(at, json.find('\n', at) - at);
}

// Returns the number of the client's map_memory calls during this many training steps.
int mappings(const PooldProcess& poold, int steps) {
  TemporaryFolder folder;
  const std::string trace = folder.path() / "trace";
  const Finished step = run_to_end({program_path("gpupool-bench-step"), std::to_string(steps), "1"},
                                   {{"LD_LIBRARY_PATH", BENCH_CLIENT_FOLDER},
                                    {"GPUPOOL", poold.url()},
                                    {"GPUPOOL_TRACE", "1"},
                                    {"GPUPOOL_TRACE_FILE", trace}});
  INFO(step.output);
  REQUIRE(step.status == 0);
  std::ifstream lines(trace);
  int count = 0;
  for (std::string line; std::getline(lines, line);)
    std::sscanf(line.c_str(), "gpupool: map_memory %d", &count);
  return count;
}

}  // namespace

TEST_CASE("allocating and freeing repeatedly does not add mappings") {
  PooldProcess poold("softgpu");
  const int few = mappings(poold, 5);
  CHECK(few > 0);
  CHECK(few < 20);
  CHECK(mappings(poold, 30) < 20);  // each step makes 20 allocations
}

TEST_CASE("a quick run of gpupool-bench has every figure") {
  TemporaryFolder folder;
  const QuickRun run = quick_run({"--plots", folder.path(), "--costs", "h100"}, std::chrono::minutes(5));
  const std::string& text = run.json;
  INFO(run.output);
  for (const char* name :
       {"null_call", "queued_launch", "launches_until_done", "alloc_free", "small_h2d_client", "small_h2d",
        "h2d_pinned_4096", "h2d_pageable_1048576", "d2h_pinned_1048576", "d2h_pageable_4096", "step",
        "step_timeline", "step_rtt_0.2_ms", "queued_launch_long", "small_h2d_client_long"}) {
    INFO(name);
    const std::string line = line_of(text, name);
    REQUIRE(!line.empty());
    CHECK(run.value(name) > 0);
    CHECK(run.output.find(name) != std::string::npos);
  }
  // Calls that wait for a reply take longer than queued ones, and steps over a slow link longer than its
  // round trips.
  CHECK(run.value("null_call") > run.value("queued_launch"));
  CHECK(run.value("null_call") > run.value("small_h2d_client"));
  CHECK(run.value("step_rtt_0.2_ms") > 200 * run.value("round_trips_per_step"));  // us
  for (const char* name : {"null_call", "h2d_pinned_4096", "d2h_pinned_1048576", "step"}) {
    INFO(name);
    CHECK(run.value(name, "tcp", "baseline_value") > 0);
  }
  // With a GPU driver's costs the direct allocation is slower, but the client answers it locally: the ratio
  // drops.
  CHECK(run.value("alloc_free", "tcp", "costly_ratio") > 0);
  CHECK(run.value("alloc_free", "tcp", "costly_ratio") < run.value("alloc_free", "tcp", "ratio"));
  for (const char* plot : {"h2d.svg", "d2h.svg", "step.svg"}) {
    std::stringstream svg;
    svg << std::ifstream(folder.path() / plot).rdbuf();
    CHECK(svg.str().find("</svg>") != std::string::npos);
  }
  CHECK(line_of(text, "round_trips_per_step").find("\"reached\": true") != std::string::npos);
}
