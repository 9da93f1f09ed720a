// The environment in which a CUDA program uses gpupool, and where the client library is. Used by pool-run,
// and by programs that describe the environment to others. One thread.
#pragma once
#include <filesystem>
#include <string>
#include <vector>

#include "common/result.h"

namespace gpupool::run {

// Folders of gpupool: the running program is PREFIX/bin/NAME, the client library
// PREFIX/lib/client/libcuda.so.1.
struct Installation {
  std::filesystem::path programs;
  std::filesystem::path client;
};
// Finds the folders from the path of the running program, with symbolic links resolved.
// ErrorCode::unavailable: there is no client library.
Result<Installation> find_installation();

struct EnvironmentOptions {
  std::string server;      // value of GPUPOOL
  std::string token_file;  // absolute path; empty: GPUPOOL_TOKEN_FILE is not set
  bool preload = false;    // adds the library to LD_PRELOAD
  bool stats = false;      // GPUPOOL_STATS
  std::string timeline;    // absolute path; empty: GPUPOOL_TIMELINE is not set
};

struct Variable {
  enum class Mode {
    replace,
    keep_existing,
    prepend,  // to the present value, with a colon between them
  };
  std::string name;
  std::string value;
  Mode mode = Mode::replace;
};

// Returns the variables that a program needs. ErrorCode::invalid: the dynamic linker cannot use the path of
// the client library.
Result<std::vector<Variable>> program_environment(const Installation& installation,
                                                  const EnvironmentOptions& options);

// Sets the variables of this process. Returns false if out of memory.
[[nodiscard]] bool set_variables(const std::vector<Variable>& variables);

}  // namespace gpupool::run
