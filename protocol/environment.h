// Sets environment variables of this process. Only while it starts, before its first other thread: getenv() in another thread, or in a
// library, is not protected from it.
#pragma once

#include <cstdlib>
#include <string>

namespace gpupool {

// False: out of memory. A variable that is set already is left alone with `replace` false.
[[nodiscard]] inline bool set_environment(const char* name, const std::string& value, bool replace = true) {
  return ::setenv(name, value.c_str(), replace ? 1 : 0) == 0;  // NOLINT(concurrency-mt-unsafe): one thread, see above
}

}  // namespace gpupool
