// A suggestion for a key that a user has mistyped, for error messages. Values; any thread.
#pragma once
#include <string>
#include <string_view>
#include <vector>

namespace gpupool::server {

// "; did you mean 'memory'?" with the known word that `word` is most like; empty if it is like none. Hyphens and underscores are the same.
std::string suggestion(std::string_view word, const std::vector<std::string_view>& known);

}  // namespace gpupool::server
