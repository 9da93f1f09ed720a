// Fills a pipe through its non-blocking write end `end`, so that the next write must wait for a reader.
#pragma once
#include <unistd.h>

#include <string>

namespace gpupool::testing {

inline void fill_pipe(int end) {
  const std::string filler(4096, 'f');
  while (::write(end, filler.data(), filler.size()) > 0) {
  }
  while (::write(end, "f", 1) > 0) {
  }
}

}  // namespace gpupool::testing
