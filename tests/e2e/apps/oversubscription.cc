// Programs that together use more memory than the device has.
#include <unistd.h>

#include "tests/e2e/apps/scenario.h"

using namespace app;

namespace {

constexpr size_t kAllocationBytes = size_t{8} << 20;

void wait_for(const std::string& file) {
  for (int i = 0; i < 60'000 && ::access(file.c_str(), F_OK) != 0; ++i) ::usleep(1000);
}

}  // namespace

// [path prefix, blocks, rounds]: allocates blocks of 8 MiB and fills them. In each round N, once the file
// PREFIXN exists, checks all values and writes new ones.
SCENARIO(oversubscribed) {
  Device device;
  Kernels kernels;
  const size_t pieces = std::stoul(arguments.at(1));
  const unsigned rounds = static_cast<unsigned>(std::stoul(arguments.at(2)));
  const unsigned count = kAllocationBytes / 4;
  std::vector<CUdeviceptr> memory(pieces);
  const unsigned seed = static_cast<unsigned>(::getpid()) * 1000;
  for (size_t i = 0; i < pieces; ++i) {
    OK(cuMemAlloc(&memory[i], kAllocationBytes));
    OK(kernels.launch("fill", (count + 255) / 256, 256, nullptr, memory[i], static_cast<unsigned>(seed + i),
                      count));
  }
  OK(cuCtxSynchronize());
  for (unsigned round = 0;; ++round) {
    std::printf("round %u\n", round);
    std::fflush(stdout);
    if (round == rounds) break;
    wait_for(arguments.at(0) + std::to_string(round));
    for (size_t i = 0; i < pieces; ++i) {
      const auto values = download<uint32_t>(memory[i], count);
      for (unsigned k = 0; k < count; ++k) EXPECT(values[k] == seed + i + round + k);
      OK(kernels.launch("fill", (count + 255) / 256, 256, nullptr, memory[i],
                        static_cast<unsigned>(seed + i + round + 1), count));
    }
    OK(cuCtxSynchronize());
  }
  for (const CUdeviceptr address : memory) OK(cuMemFree(address));
}

// Allocates blocks of 8 MiB until an allocation fails, and prints their number.
SCENARIO(takes_until_refused) {
  Device device;
  size_t taken = 0;
  CUresult result = CUDA_SUCCESS;
  for (CUdeviceptr address = 0; result == CUDA_SUCCESS && taken < 100; taken += result == CUDA_SUCCESS)
    result = cuMemAlloc(&address, kAllocationBytes);
  std::printf("took %zu, then %s\n", taken, name_of(result));
}
