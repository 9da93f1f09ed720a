// The lists of options in docs/operations.md, which are made from the daemons' tables of options.
#pragma once
#include <string>

namespace gpupool::testing {

// Replaces the lists in the text of docs/operations.md. Throws std::runtime_error if it has no place for one.
std::string with_lists_of_options(const std::string& page);

}  // namespace gpupool::testing
