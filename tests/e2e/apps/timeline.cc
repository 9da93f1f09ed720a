// What a timeline must show: known numbers of kernels, copies and bytes, in two streams.
#include <vector>

#include "tests/e2e/apps/scenario.h"

using namespace app;

// [bytes of a large copy]: prints the bytes copied each way, and the number of kernels.
SCENARIO(timeline) {
  Device device;
  Kernels kernels;
  const size_t large = std::stoul(arguments.at(0));
  constexpr size_t kSmall = 1000;
  constexpr unsigned kKernels = 5, kRounds = 20'000;
  std::vector<char> host(large, 'x');
  CUdeviceptr values = 0, memory = 0;
  OK(cuMemAlloc(&values, 4096));
  OK(cuMemAlloc(&memory, large));
  CUstream streams[2];
  for (CUstream& stream : streams) OK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
  for (CUstream const stream : streams) {
    OK(cuMemcpyHtoDAsync(memory, host.data(), kSmall, stream));
    for (unsigned i = 0; i < kKernels; ++i) OK(kernels.launch("burn", 1, 1, stream, values, kRounds));
    OK(cuMemcpyHtoDAsync(memory, host.data(), large, stream));
    OK(cuMemsetD8Async(values, 1, 4096, stream));
    OK(cuMemcpyDtoHAsync(host.data(), memory, kSmall, stream));
    OK(cuMemcpyDtoHAsync(host.data(), memory, large, stream));
    OK(cuStreamSynchronize(stream));
  }
  std::printf("to device %zu from device %zu kernels %u\n", 2 * (kSmall + large), 2 * (kSmall + large),
              2 * kKernels);
}
