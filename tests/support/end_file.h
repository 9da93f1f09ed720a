// Ends a program of a test: such programs run until the file `end` exists, however fast the device is.
#pragma once
#include <string>

#include "tests/support/processes.h"

namespace gpupool::testing {

struct EndFile {
  void end_program() const { folder.write("end", ""); }
  const TemporaryFolder folder;
  const std::string end = folder.path() / "end";
};

}  // namespace gpupool::testing
