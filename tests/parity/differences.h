// The differences between two lists of lines, as diff finds them: a line that one list lacks does not make
// all later lines differ.
#pragma once
#include <string>
#include <vector>

namespace gpupool::testing {

// Lines at the same place in both lists; empty: the list has no line there.
struct Difference {
  std::string expected, seen;
};

// Takes time and memory in proportion to the product of the lengths of the parts that differ.
std::vector<Difference> differences(const std::vector<std::string>& expected,
                                    const std::vector<std::string>& seen);

}  // namespace gpupool::testing
