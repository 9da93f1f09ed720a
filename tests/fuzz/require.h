// Checks a fuzz target's contract: aborts if it does not hold, so that the fuzzer reports the input.
#pragma once
#include <cstdio>
#include <cstdlib>
#include <source_location>

namespace gpupool::fuzz {

inline void require(bool condition, std::source_location where = std::source_location::current()) {
  if (condition) return;
  std::fprintf(stderr, "%s:%u: %s: not so\n", where.file_name(), where.line(), where.function_name());
  std::abort();
}

}  // namespace gpupool::fuzz
