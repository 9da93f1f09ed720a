// Checks docs/coverage.md against a run of driver_parity. Each function with "yes", "in part" or "no effect"
// must have succeeded or be listed in untested.def; each function with "no" must have been called and have
// failed each time.
#pragma once
#include <set>
#include <string>
#include <vector>

namespace gpupool::testing {

// Names of functions, without _vN, _ptds and _ptsz.
struct Outcomes {
  std::set<std::string> succeeded;  // at least once
  std::set<std::string> failed;     // at least once
};

// Adds the calls in a part's output, which have the form "cuFunction(arguments) -> CUDA_SUCCESS".
void add_outcomes(const std::vector<std::string>& lines, Outcomes& outcomes);

// Fails the test for each function whose outcome differs from the declared one, and for each listed function
// that succeeded or that its file does not name.
void expect_effects(const Outcomes& outcomes);

}  // namespace gpupool::testing
