#include "tests/bench/round_trips.h"

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <limits>
#include <stdexcept>

#include "tests/bench/run_program.h"

namespace gpupool::bench {
namespace {

using testing::Environment;
namespace fs = std::filesystem;

// The examples whose round trips are reported: those that run on one GPU without arguments.
constexpr const char* kExamples[] = {"driver_api",      "fractal",     "host_threads",
                                     "matrix_multiply", "monte_carlo", "paillier",
                                     "pipeline",        "reduction",   "vector_add"};

struct Counts {
  double calls = 0, round_trips = 0;
};

// Returns the client's own counts (GPUPOOL_TRACE), which do not depend on the transport.
Counts count_calls(const std::vector<std::string>& words, Environment environment) {
  gpupool::testing::TemporaryFolder folder;
  const std::string file = folder.path() / "trace";
  environment["GPUPOOL_TRACE"] = "1";
  environment["GPUPOOL_TRACE_FILE"] = file;
  Samples ignored;
  run_program(words, environment, ignored);
  std::ifstream lines(file);
  for (std::string line; std::getline(lines, line);) {
    Counts counts;
    if (std::sscanf(line.c_str(), "gpupool: total %lf %lf", &counts.calls, &counts.round_trips) == 2)
      return counts;
  }
  throw std::runtime_error(words[0] + " wrote no trace");
}

}  // namespace

// Returns the round trips per step as the difference of two runs of different length, so that set-up cancels
// out. Takes the minimum of three runs, because memory that is freed late costs one additional mapping.
double round_trips_per_step(const Environment& environment) {
  const auto count = [&](int steps) {
    double fewest = std::numeric_limits<double>::max();
    for (int run = 0; run < 3; ++run) {
      const Counts counts =
          count_calls({program("gpupool-bench-step"), std::to_string(steps), "1"}, environment);
      fewest = std::min<double>(fewest, counts.round_trips);
    }
    return fewest;
  };
  constexpr int kFew = 2, kMore = 42;
  return (count(kMore) - count(kFew)) / (kMore - kFew);
}

void add_examples(const Environment& environment, const std::string& transport,
                  std::vector<Figure>& figures) {
  for (const char* name : kExamples) {
    const fs::path program = prefix() / "examples" / name;
    if (!fs::exists(program)) {
      std::fprintf(stderr, "gpupool-bench: round_trips_%s is skipped: %s is not built\n", name,
                   program.c_str());
      continue;
    }
    gpupool::testing::TemporaryFolder outputs;  // working folder: an example may write a picture
    const Counts counts =
        count_calls({"/bin/sh", "-c", "cd \"$0\" && exec \"$1\"", outputs.path(), program}, environment);
    figures.push_back({std::string("round_trips_") + name, transport, counts.round_trips, "calls",
                       "calls_that_travel", counts.calls});
  }
}

}  // namespace gpupool::bench
