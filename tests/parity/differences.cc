#include "tests/parity/differences.h"

#include <algorithm>

namespace gpupool::testing {
namespace {

// lengths[i][j]: the number of lines that the lists have in common from line i and line j on.
using Lengths = std::vector<std::vector<unsigned>>;

Lengths common_lines(const std::vector<std::string>& expected, const std::vector<std::string>& seen) {
  Lengths lengths(expected.size() + 1, std::vector<unsigned>(seen.size() + 1));
  for (size_t i = expected.size(); i-- > 0;) {
    for (size_t j = seen.size(); j-- > 0;) {
      lengths[i][j] =
          expected[i] == seen[j] ? lengths[i + 1][j + 1] + 1 : std::max(lengths[i + 1][j], lengths[i][j + 1]);
    }
  }
  return lengths;
}

// Pairs the lines between two common lines.
void add_pairs(std::vector<std::string>& missing, std::vector<std::string>& added,
               std::vector<Difference>& found) {
  for (size_t i = 0; i < std::max(missing.size(), added.size()); ++i)
    found.push_back({i < missing.size() ? missing[i] : "", i < added.size() ? added[i] : ""});
  missing.clear();
  added.clear();
}

}  // namespace

std::vector<Difference> differences(const std::vector<std::string>& expected,
                                    const std::vector<std::string>& seen) {
  const Lengths lengths = common_lines(expected, seen);
  std::vector<Difference> found;
  std::vector<std::string> missing, added;
  size_t i = 0, j = 0;
  while (i < expected.size() || j < seen.size()) {
    if (i < expected.size() && j < seen.size() && expected[i] == seen[j]) {
      add_pairs(missing, added, found);
      ++i, ++j;
    } else if (j == seen.size() || (i < expected.size() && lengths[i + 1][j] >= lengths[i][j + 1])) {
      missing.push_back(expected[i++]);
    } else {
      added.push_back(seen[j++]);
    }
  }
  add_pairs(missing, added, found);
  return found;
}

}  // namespace gpupool::testing
