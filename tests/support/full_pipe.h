// Fills a pipe whose writing end does not block, so that the next byte has to wait until somebody reads.
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
