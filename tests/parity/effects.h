// Checks docs/coverage.md against a run of driver_parity: each function that has "yes", "in part" or "no
// effect" must have succeeded in it, or be listed in untested.def; each one that has "no" must have been
// called, and have failed each time.
#pragma once
#include <set>
#include <string>
#include <vector>

namespace gpupool::testing {

// Functions, without _vN, _ptds and _ptsz.
struct Outcomes {
  std::set<std::string> succeeded;  // at least once
  std::set<std::string> failed;     // at least once
};

// Adds the calls in a part's output ("cuFunction(arguments) -> CUDA_SUCCESS").
void add_outcomes(const std::vector<std::string>& lines, Outcomes& outcomes);

// Fails the test for each function whose outcome is not the declared one, and for each listed one that
// succeeded or has no such test.
void expect_effects(const Outcomes& outcomes);

}  // namespace gpupool::testing
