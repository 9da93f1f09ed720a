// A helper for checks of texts: output, logs, pages.
#pragma once
#include <string>

namespace gpupool::testing {

// Returns true if the text contains the part.
inline bool has(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

}  // namespace gpupool::testing
