// Suggests a correction for a mistyped key, for error messages. Any thread.
#pragma once
#include <string>
#include <string_view>
#include <vector>

namespace gpupool {

// Returns "; did you mean 'memory'?" with the known word that is most like `word`, or an empty text if none
// is. Hyphens and underscores are equal.
std::string suggestion(std::string_view word, const std::vector<std::string_view>& known);

}  // namespace gpupool
