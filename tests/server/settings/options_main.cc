// Writes the lists of options into docs/operations.md: options_page FILE. Exit status 1: the file is
// unchanged.
#include <cstdio>
#include <exception>
#include <fstream>
#include <iterator>

#include "tests/server/settings/options_page.h"

int main(int count, char** words) {
  if (count != 2) return std::fputs("usage: options_page FILE\n", stderr), 2;
  try {
    std::ifstream in(words[1]);
    const std::string page((std::istreambuf_iterator<char>(in)), {});
    const std::string made = gpupool::testing::with_lists_of_options(page);
    return (std::ofstream(words[1]) << made).flush() ? 0 : 1;
  } catch (const std::exception& failure) {
    std::fprintf(stderr, "options_page: %s: %s\n", words[1], failure.what());
    return 1;
  }
}
