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

// Makes eight bytes at a time: scenarios need hundreds of megabytes, and are compiled without optimisation.
std::vector<uint8_t> pattern(size_t bytes, uint32_t seed) {
  std::vector<uint8_t> made(bytes);
  uint8_t* const to = made.data();
  uint64_t state = seed * 0x9e3779b97f4a7c15u + 12345, word = 0;
  for (size_t at = 0; at < bytes; at += sizeof word) {
    state = state * 6364136223846793005u + 1442695040888963407u;
    word = state ^ state >> 32;  // the low bits of `state` repeat soon
    if (bytes - at >= sizeof word)
      std::memcpy(to + at, &word, sizeof word);
    else
      std::memcpy(to + at, &word, bytes - at);
  }
  return made;
}

bool holds_only(const void* memory, size_t bytes, uint8_t value) {
  const auto* const first = static_cast<const uint8_t*>(memory);
  return bytes == 0 || (*first == value && std::memcmp(first, first + 1, bytes - 1) == 0);
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
