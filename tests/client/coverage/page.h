// Generates docs/coverage.md from the table of driver functions and the symbols of the built client library.
#pragma once
#include <string>
#include <vector>

namespace gpupool::testing {

enum class State {
  works,        // a row of calls.def, and none of the tables below
  partly,       // CUDA_PARTLY
  no_effect,    // CUDA_NO_EFFECT
  refused,      // CUDA_REFUSED: defined, and always fails
  unsupported,  // CUDA_UNSUPPORTED: not defined
};

struct DeclaredFunction {
  std::string name;   // without _vN, _ptds and _ptsz
  std::string since;  // CUDA version
  State state = State::unsupported;
  std::string how;                    // it is sent; empty: it has no row in calls.def
  std::string reason;                 // of limits.def or unsupported.def
  std::vector<std::string> mistakes;  // of the tables, about this function
};

// All functions of symbols.def by name, as the tables declare them.
std::vector<DeclaredFunction> declared_functions();

struct Coverage {
  struct Function : DeclaredFunction {
    std::vector<std::string> missing;  // versions of it that the library does not define
    bool defined = false;              // the library defines at least one version
  };
  std::vector<Function> functions;  // by name
};

// Throws std::runtime_error where the library cannot be read, or a table names an unknown function.
Coverage read_coverage(const std::string& library);
std::string coverage_page(const Coverage& coverage);

}  // namespace gpupool::testing
