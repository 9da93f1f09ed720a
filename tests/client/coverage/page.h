// Generates docs/coverage.md from the tables of driver functions and the symbols of the built client library.
// Used by cuda_coverage and coverage_test.cc.
#pragma once
#include <string>
#include <vector>

namespace gpupool::testing {

enum class State {
  works,        // a row of calls.def, and in none of the tables below
  partly,       // CUDA_PARTLY
  no_effect,    // CUDA_NO_EFFECT
  refused,      // CUDA_REFUSED: defined, but always fails
  unsupported,  // CUDA_UNSUPPORTED: not defined
};

struct DeclaredFunction {
  std::string name;   // without _vN, _ptds and _ptsz
  std::string since;  // CUDA version
  State state = State::unsupported;
  std::string how;                    // how it is sent; empty: no row in calls.def
  std::string reason;                 // from limits.def or unsupported.def
  std::vector<std::string> mistakes;  // errors in the tables about this function
};

// Returns all functions of symbols.def, sorted by name, as the tables declare them.
std::vector<DeclaredFunction> declared_functions();

struct Coverage {
  struct Function : DeclaredFunction {
    std::vector<std::string> missing;  // versions that the library does not define
    bool defined = false;              // the library defines at least one version
  };
  std::vector<Function> functions;  // sorted by name
};

// Throws std::runtime_error if the library cannot be read or a table names an unknown function.
Coverage read_coverage(const std::string& library);
std::string coverage_page(const Coverage& coverage);

}  // namespace gpupool::testing
