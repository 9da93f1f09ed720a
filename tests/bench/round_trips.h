// Counts the round trips of programs that run through the pool. Throws std::runtime_error if a program fails
// or writes no trace.
#pragma once
#include <string>
#include <vector>

#include "tests/bench/figures.h"
#include "tests/support/processes.h"

namespace gpupool::bench {

// Returns the round trips per step of gpupool-bench-step.
double round_trips_per_step(const testing::Environment& environment);
// Adds a figure for each example that is built.
void add_examples(const testing::Environment& environment, const std::string& transport,
                  std::vector<Figure>& figures);

}  // namespace gpupool::bench
