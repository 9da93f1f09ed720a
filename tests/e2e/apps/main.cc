#include <cstdlib>
#include <cstring>

#include "tests/e2e/apps/scenario.h"

extern const char kernels_ptx[];  // kernels.cu

namespace app {

namespace {
Scenario* first = nullptr;
}

Scenario::Scenario(const char* name, void (*body)(const Arguments&)) : name(name), body(body), next(first) {
  first = this;
}

const char* name_of(CUresult result) {
  const char* name = nullptr;
  return cuGetErrorName(result, &name) == CUDA_SUCCESS ? name : "no name";
}

void fail(const char* file, int line, const std::string& what) {
  std::fflush(stdout);
  std::fprintf(stderr, "%s:%d: %s\n", file, line, what.c_str());
  std::_Exit(1);
}

void check(CUresult result, CUresult expected, const char* file, int line, const char* call) {
  if (result == expected) return;
  fail(file, line, std::string(call) + " gave " + name_of(result) + ", not " + name_of(expected));
}

Device::Device(int ordinal) {
  OK(cuInit(0));
  OK(cuDeviceGet(&device, ordinal));
  OK(cuDevicePrimaryCtxRetain(&context, device));
  OK(cuCtxSetCurrent(context));
}

CUcontext create_context(CUdevice device, unsigned flags) {
  CUcontext context = nullptr;
#if CUDA_VERSION >= 13000
  OK(cuCtxCreate(&context, nullptr, flags, device));
#else
  OK(cuCtxCreate(&context, flags, device));
#endif
  return context;
}

Kernels::Kernels() {
  OK(cuModuleLoadData(&module, kernels_ptx));
}

CUfunction Kernels::function(const char* name) const {
  CUfunction found = nullptr;
  OK(cuModuleGetFunction(&found, module, name));
  return found;
}

std::vector<uint8_t> pattern(size_t bytes, uint32_t seed) {
  std::vector<uint8_t> made(bytes);
  uint32_t state = seed * 2654435761u + 12345;
  for (uint8_t& byte : made) {
    state = state * 1664525u + 1013904223u;
    byte = static_cast<uint8_t>(state >> 24);
  }
  return made;
}

}  // namespace app

int main(int count, char** words) {
  if (count == 2 && !std::strcmp(words[1], "--list")) {
    for (const app::Scenario* scenario = app::first; scenario; scenario = scenario->next)
      std::puts(scenario->name);
    return 0;
  }
  // With lazy loading, a kernel's first launch may wait for all work of its context. Here some of that work
  // waits for what the program does after the launch. The server loads its kernels lazily nevertheless.
  ::setenv("CUDA_MODULE_LOADING", "EAGER", 0);
  unsigned times = 1;
  if (count > 3 && !std::strcmp(words[1], "--times")) {
    times = static_cast<unsigned>(std::strtoul(words[2], nullptr, 10));
    words += 2, count -= 2;
  }
  for (const app::Scenario* scenario = app::first; scenario && count > 1; scenario = scenario->next) {
    if (std::strcmp(scenario->name, words[1])) continue;
    for (; times > 0; --times) {
      scenario->body(app::Arguments(words + 2, words + count));
      std::printf("%s: done\n", scenario->name);
    }
    return 0;
  }
  std::fputs("usage: driver_app --list | [--times N] SCENARIO [ARGUMENTS]\n", stderr);
  return 2;
}
