// Programs that lose their server, or never find it: they print each call's result and exit.
#include <signal.h>
#include <unistd.h>

#include <algorithm>

#include "tests/e2e/apps/scenario.h"

using namespace app;

namespace {

void report_rest(CUresult result) {
  CUdeviceptr address = 0;
  CUcontext current = nullptr;
  std::printf("gave %s", name_of(result));
  std::printf(", then %s", name_of(cuMemAlloc(&address, 64)));
  std::printf(" %s", name_of(cuCtxSynchronize()));
  std::printf(" %s\n", name_of(cuCtxGetCurrent(&current)));
}

}  // namespace

SCENARIO(initialise) {
  int count = -1;
  std::printf("cuInit %s", name_of(cuInit(0)));
  std::printf(", again %s", name_of(cuInit(0)));
  std::printf(", count %s\n", name_of(cuDeviceGetCount(&count)));
}

// Repeats one activity until it fails: wait, read, write, launch, or kernel (which never ends).
SCENARIO(until_it_fails) {
  Device device;
  Kernels kernels;
  constexpr size_t kBytes = size_t{64} << 20;
  const std::string what = arguments.at(0);
  std::vector<uint8_t> host(kBytes);
  CUdeviceptr memory = 0;
  OK(cuMemAlloc(&memory, kBytes));
  OK(cuMemsetD8(memory, 0, kBytes));
  const CUfunction nothing = kernels.function("nothing");
  OK(cuCtxSynchronize());
  if (what == "kernel") OK(kernels.launch("burn_forever", 1, 1, nullptr, memory));
  std::printf("working\n");
  std::fflush(stdout);
  CUresult result = CUDA_SUCCESS;
  while (result == CUDA_SUCCESS) {
    if (what == "wait" || what == "kernel") {
      result = cuCtxSynchronize();
    } else if (what == "read") {
      result = cuMemcpyDtoH(host.data(), memory, kBytes);
    } else if (what == "write") {
      result = cuMemcpyHtoD(memory, host.data(), kBytes);
    } else if (what == "launch") {
      result = cuLaunchKernel(nothing, 1, 1, 1, 1, 1, 1, 0, nullptr, nullptr, nullptr);
    } else {
      EXPECT(!"unknown activity");
    }
  }
  report_rest(result);
}

// Allocates 128 MiB, prints "holding", and waits until it is killed.
SCENARIO(hold_memory) {
  Device device;
  CUdeviceptr memory = 0;
  OK(cuMemAlloc(&memory, size_t{128} << 20));
  OK(cuCtxSynchronize());
  if (!arguments.empty() && arguments[0] == "forked") {
    if (fork() == 0) {
      for (;;) pause();
    }
  }
  std::printf("holding\n");
  std::fflush(stdout);
  for (;;) pause();
}

// Prints the free device memory that a new program sees.
SCENARIO(free_memory) {
  Device device;
  size_t free = 0, total = 0;
  OK(cuMemGetInfo(&free, &total));
  std::printf("free %zu\n", free);
}

// A short program: a context, some memory, a fill, a result. With an argument it kills itself without
// cleanup.
SCENARIO(short_life) {
  Device device;
  CUdeviceptr memory = 0;
  OK(cuMemAlloc(&memory, 1 << 20));
  OK(cuMemsetD32(memory, 7, 1024));
  EXPECT(download<uint32_t>(memory, 1024)[1023] == 7);
  if (!arguments.empty()) ::raise(SIGKILL);
}
