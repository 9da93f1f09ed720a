// Sets environment variables of this process. Call it only at startup, before the process starts a second
// thread: setenv() races with getenv() in other threads, including those of libraries.
#pragma once

#include <cstdlib>
#include <string>

namespace gpupool {

// Sets `name` to `value`; with `replace` false, keeps an existing value. Returns false if out of memory.
[[nodiscard]] inline bool set_environment(const char* name, const std::string& value, bool replace = true) {
  return ::setenv(name, value.c_str(), replace ? 1 : 0) ==
         0;  // NOLINT(concurrency-mt-unsafe): one thread, see above
}

}  // namespace gpupool
