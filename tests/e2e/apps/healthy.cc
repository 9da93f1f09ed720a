// A program that must not be affected by other programs' faults.
#include <unistd.h>

#include <csignal>

#include "tests/e2e/apps/scenario.h"

using namespace app;

namespace {

volatile std::sig_atomic_t g_enough = 0;

}  // namespace

// [seed]: until SIGUSR1, computes, copies both ways, allocates and frees memory, streams and events, and
// checks every result. Pauses between rounds, to leave CPU time for the rest of the test.
SCENARIO(healthy) {
  std::signal(SIGUSR1, [](int) { g_enough = 1; });
  Device device;
  Kernels kernels;
  const unsigned seed = static_cast<unsigned>(std::stoul(arguments.at(0)));
  constexpr size_t kBytes = 3u << 20;
  CUstream stream = nullptr;
  CUdeviceptr values = 0;
  OK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
  OK(cuMemAlloc(&values, 4096));
  unsigned rounds = 0;
  for (; g_enough == 0; ++rounds) {
    OK(kernels.launch("fill", 4, 256, stream, values, seed + rounds, 1024u));
    OK(cuStreamSynchronize(stream));
    EXPECT(download<uint32_t>(values, 1024)[1023] == seed + rounds + 1023);
    const std::vector<uint8_t> data = pattern(kBytes, seed + rounds);
    std::vector<uint8_t> back(kBytes);
    CUdeviceptr memory = 0;
    CUevent event = nullptr;
    OK(cuMemAlloc(&memory, kBytes));
    OK(cuEventCreate(&event, CU_EVENT_DISABLE_TIMING));
    OK(cuMemcpyHtoDAsync(memory, data.data(), kBytes, stream));
    OK(cuEventRecord(event, stream));
    OK(cuEventSynchronize(event));
    OK(cuMemcpyDtoH(back.data(), memory, kBytes));
    EXPECT(back == data);
    OK(cuEventDestroy(event));
    OK(cuMemFree(memory));
    if (rounds == 0) {
      std::printf("working\n");
      std::fflush(stdout);
    }
    ::usleep(20'000);
  }
  std::printf("healthy for %u rounds\n", rounds);
}
