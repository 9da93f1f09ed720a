// docs/coverage.md, made of the table of driver functions and of what the built client library defines.
#pragma once
#include <string>
#include <vector>

namespace gpupool::testing {

struct Coverage {
  struct Function {
    std::string name;                 // without _vN, _ptds and _ptsz
    std::string since;                // CUDA version
    std::string how;                  // it works; empty: it does not
    std::string reason;               // of unsupported.def; empty: it has no row there
    std::vector<std::string> missing;  // versions of it that the library does not define
    bool defined = false;             // the library defines at least one version
  };
  std::vector<Function> functions;  // by name
};

// Throws std::runtime_error where the library cannot be read.
Coverage read_coverage(const std::string& library);
std::string coverage_page(const Coverage& coverage);

}  // namespace gpupool::testing
