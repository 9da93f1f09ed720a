// Checks docs/coverage.md's "yes", "in part" and "no effect" against a run of driver_parity: each of these functions must have
// succeeded in it, or be listed in untested.def.
#pragma once
#include <set>
#include <string>
#include <vector>

namespace gpupool::testing {

// Adds the functions, without _vN, _ptds and _ptsz, that succeeded in a part's output ("cuFunction(arguments) -> CUDA_SUCCESS").
void add_successes(const std::vector<std::string>& lines, std::set<std::string>& succeeded);

// Fails the test for each function that neither succeeded nor is listed, and for each listed one that succeeded or has no such test.
void expect_effects(const std::set<std::string>& succeeded);

}  // namespace gpupool::testing
