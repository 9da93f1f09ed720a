// The programs that are measured, where the build has put them, and how they are run.
#pragma once
#include <filesystem>
#include <string>
#include <vector>

#include "tests/bench/figures.h"
#include "tests/support/processes.h"

namespace gpupool::bench {

std::filesystem::path prefix();  // of this build: bin, lib and examples are there
std::string program(const char* name);

// Runs a measured program and adds its "name value" lines. Throws with its output when it fails.
void run_program(const std::vector<std::string>& words, const testing::Environment& environment, Samples& samples);

// A GPU takes no cores from the host; softgpu shall leave some for what would run beside it. The same on both sides.
testing::Environment device_environment();

}  // namespace gpupool::bench
