// Locates and runs the measured programs of gpupool-bench.
#pragma once
#include <cstdio>
#include <filesystem>
#include <string>
#include <vector>

#include "tests/bench/figures.h"
#include "tests/support/processes.h"

namespace gpupool::bench {

std::filesystem::path prefix();         // build folder with bin, lib and examples
std::string program(const char* name);  // path of a program in bin

// Runs a measured program and adds its "NAME VALUE" lines. Throws std::runtime_error with its output if it
// fails.
void run_program(const std::vector<std::string>& words, const testing::Environment& environment,
                 Samples& samples);

// Runs the training step without a timeline (its own samples) and with one: "step_timeline_us".
void run_with_and_without_timeline(const std::vector<std::string>& words, testing::Environment environment,
                                   Samples& samples);

// Runs the rounds of a suite, saying which one, and returns its figures.
template <class Suite>
std::vector<Figure> measure_rounds(Suite& suite, int rounds) {
  for (int round = 1; round <= rounds; ++round) {
    std::fprintf(stderr, "gpupool-bench: round %d of %d\n", round, rounds);
    suite.round();
  }
  return suite.figures();
}

// Returns the environment for the device library in direct and pooled runs: limits softgpu to half of the
// cores, because a GPU would leave the host's cores to other programs.
testing::Environment device_environment();

}  // namespace gpupool::bench
